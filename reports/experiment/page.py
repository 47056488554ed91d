"""Writes the page of an experiment: the claim of the source, the numbers, and the figure.

In: the run folders of its arms, and its checks. Out: `experiment.html`, `experiment.json`, and
sentences to print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from reports.experiment.arms import ArmResults, ArmRun, read_arm
from reports.experiment.claims import Check
from reports.experiment.judge import ClaimPoint, Finding, judge
from reports.experiment.setup import Setup, as_json, notes, setups
from reports.experiment.significance import ClaimOutcome
from reports.experiment.verdict import outcome_of, verdict
from reports.figures.drawing import Figure, Spec, Trace, dot, plain, rule, scatter, wide_spread
from reports.figures.overview import figures
from reports.figures.styles import MAX_ALL_HIGHLIGHTED, Legend, Style, highlighted, legend, styles
from reports.page.environment import write_page
from reports.statistics.points import Point, points
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted, listed

SHOWN = ("jct-mean", "jct-p95")


@dataclass(frozen=True, slots=True)
class ExperimentText:
    """The texts of an experiment, without its numbers."""

    name: str
    title: str
    source: str
    source_engine: str
    claim: str
    assumes: str
    predicts: str
    not_testable: str


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    path: Path
    verdict: str
    outcome: ClaimOutcome | None
    """None if the experiment is not testable here."""
    findings: tuple[Finding, ...]
    failed: tuple[str, ...] = ()
    """Cells that failed a gate, each with its gates."""
    setups: Mapping[Setup, tuple[str, ...]] = field(default_factory=dict)
    """Names of arms by their setup."""
    changed: str = ""
    """A sentence on settings that differ from the experiment's file."""


def write_experiment(
    about: ExperimentText,
    arms: Sequence[ArmRun],
    checks: Sequence[Check],
    folder: Path,
    changed: str = "",
) -> ExperimentReport:
    """`changed` says which settings differ from the experiment's file."""
    read = [read_arm(arm, checks) for arm in arms]
    cells = {each.arm.name: each.results.cells for each in read}
    positions = {arm.name: arm.x for arm in arms}
    findings = tuple(judge(check, cells, positions) for check in checks)
    drawn, variants = _figures(read, checks)
    failed = tuple(
        f"{each.arm.name}: {cell}: {gates}"
        for each in read
        for cell, gates in each.results.failed_gates.items()
    )
    used = setups({each.arm.name: each.sweep for each in read})
    caveats = [*filter(None, [changed]), *_caveats(read)]
    report = finish(about, findings, folder, drawn, variants, caveats, used)
    return replace(report, failed=failed, changed=changed)


def finish(
    about: ExperimentText,
    findings: tuple[Finding, ...],
    folder: Path,
    drawn: Sequence[Figure] = (),
    variants: Legend | None = None,
    caveats: Sequence[str] = (),
    used: Mapping[Setup, tuple[str, ...]] | None = None,
) -> ExperimentReport:
    """Write the page and the JSON file of any findings."""
    sentence, outcome = verdict(findings, about.not_testable), outcome_of(findings)
    claims = claim_figures(findings)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "experiment.html"
    write_page(
        path,
        "experiment.html.j2",
        context=[f"experiment {about.name}", about.source],
        about=about,
        verdict=sentence,
        findings=findings,
        claim_figures=claims,
        figures=drawn,
        legend=variants,
        caveats=caveats,
        setups=used or {},
        notes=notes(used or {}),
    )
    summary = {
        "name": about.name,
        "outcome": outcome,
        "verdict": sentence,
        "findings": [_as_json(finding) for finding in findings],
        "source_engine": about.source_engine,
        "setups": as_json(used or {}),
        "caveats": list(caveats),
    }
    content = orjson.dumps(summary, option=orjson.OPT_INDENT_2)
    write_file(folder / "experiment.json", content)
    return ExperimentReport(path, sentence, outcome, findings, setups=used or {})


def _as_json(finding: Finding) -> dict[str, Any]:
    names = ("says", "published", "ours", "outcome", "reading", "direction")
    points = [
        {
            "point": p.label,
            "value": p.value.value,
            "low": p.value.low,
            "high": p.value.high,
            "bounds": p.bounds,
        }
        for p in finding.points
    ]
    return {
        **{name: getattr(finding, name) for name in names},
        "published_range": _published(finding),
        "is_capacity": bool(finding.check and finding.check.is_capacity),
        "points": points,
    }


def _figures(read: Sequence[ArmResults], checks: Sequence[Check]) -> tuple[list[Figure], Legend]:
    """Draw one figure over all arms if they differ in a number, otherwise one figure per arm. The
    baseline and the variants of the first claims are highlighted."""
    variants = {v.name: v for each in read for v in each.sweep.variants}
    baseline = read[0].baseline
    style = styles(variants.values())
    # Each seed has its own programs, so jobs are not paired across seeds, as in a steady state.
    found = [points(each.results, each.baseline, steady=True) for each in read]
    everything = [point for mine in found for point in mine]
    references = [point.variant for point in everything if point.reference]
    claimed = dict.fromkeys(name for check in checks for name in (check.of, check.to) if name)
    strong = [baseline, *list(claimed)[:MAX_ALL_HIGHLIGHTED], *references]
    chosen = highlighted({point.variant for point in everything}, strong, ())
    shown = legend(list(style), style, chosen, [baseline])
    drawn: list[Figure] = []
    if all(each.arm.x is not None for each in read):
        for axis in dict.fromkeys(each.arm.axis for each in read):
            moved = [
                replace(p, amount=each.arm.x)
                for each, ps in zip(read, found, strict=True)
                for p in ps
                if each.arm.axis == axis
            ]
            drawn += _over_axis(axis, moved, style, len(drawn))
        return drawn, shown
    for number, (each, mine) in enumerate(zip(read, found, strict=True)):
        for figure in figures(mine, style, [baseline]):
            if figure.id == SHOWN[0]:
                title = f"{each.arm.name}: {figure.title[0].lower()}{figure.title[1:]}"
                drawn.append(replace(figure, id=f"arm-{number}", title=title))
    return drawn, shown


def _over_axis(
    axis: str, moved: Sequence[Point], style: Mapping[str, Style], first: int
) -> list[Figure]:
    drawn = []
    for number, load in enumerate(dict.fromkeys(p.load for p in moved), first):
        mine = [replace(p, load=f"{p.amount:g}") for p in moved if p.load == load]
        for figure in figures(mine, style, []):
            if figure.id in SHOWN:
                figure.spec["layout"]["xaxis"]["title"] = {"text": axis}
                what = figure.title.removesuffix(" against rate")
                title = f"{what} at {load}, by {axis}"
                drawn.append(replace(figure, id=f"{figure.id}-{number}", title=title))
    return drawn


def _caveats(read: Sequence[ArmResults]) -> list[str]:
    virtual = {each.sweep.virtual_time for each in read if each.sweep.virtual_time is not None}
    caveats = [f"No GPU was used: {name}." for name in sorted(virtual)]
    if few := [each.arm.name for each in read if each.seeds == 1]:
        where = "" if len(few) == len(read) else f" of {listed(few)}"
        caveats.append(f"One seed{where}: nothing can be said about other programs and arrivals.")
    caveats += _saturation(read)
    for each in read:
        caveats += [
            f"{each.arm.name}: {n} has no result ({why})." for n, why in each.results.missing
        ]
    return caveats


def _saturation(read: Sequence[ArmResults]) -> list[str]:
    counts = {
        each.arm.name: (int(each.results.cells["saturated"].sum()), len(each.results.cells))
        for each in read
        if len(each.results.cells)
    }
    saturated, cells = (
        (sum(column) for column in zip(*counts.values(), strict=True)) if counts else (0, 0)
    )
    if not saturated:
        return []
    where = ""
    if len(counts) > 1 and saturated < cells:
        where = ": " + listed(
            [f"{n} of {of} of “{arm}”" for arm, (n, of) in counts.items() if n], at_most=12
        )
    return [
        f"{counted(saturated, 'cell')} of {cells} are past saturation, so that their mean JCT "
        f"grows with the number of jobs{where}."
    ]


PUBLISHED = "published"
MAX_POINTS = 40


def claim_figures(findings: Sequence[Finding]) -> list[Figure]:
    return [
        _figure(number, finding)
        for number, finding in enumerate(findings)
        if _published(finding) and 0 < len(finding.points) <= MAX_POINTS
    ]


def _published(finding: Finding) -> list[float]:
    check = finding.check
    given = (check.published_from, check.published_to) if check else ()
    return [number for number in given if number is not None]


def _figure(number: int, finding: Finding) -> Figure:
    published = _published(finding)
    points = {point.label: point for point in finding.points}
    check = finding.check
    is_ratio = check is not None and not check.is_knee and (check.to or check.over)
    unit = "ratio" if is_ratio else finding.direction.partition(" of ")[0]
    spec: Spec = {
        "data": [_published_dot(published), *map(_dot, points.values())],
        "layout": {
            "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
            "yaxis": {"automargin": True, "type": "category"},
            "shapes": [rule("x", value, dash="dash") for value in published],
        },
        "alt": f"Dot plot of {finding.direction}: ours {finding.ours}, {_stated(published)}",
        "value": "x",
        "note": f"{finding.direction[:1].upper()}{finding.direction[1:]}. Our values have 95% "
        f"intervals over seeds; dashed lines: {_stated(published)}.",
        "rows": [[PUBLISHED, PUBLISHED], *([label, plain(label)] for label in points)],
    }
    values = [*published, *(point.value.value for point in points.values())]
    reading = f"{finding.reading}: " if finding.reading else ""
    title = f"{reading}{finding.says}"
    return Figure(f"claim-{number}", title[:1].upper() + title[1:], {"": spec}, wide_spread(values))


def _stated(published: Sequence[float]) -> str:
    return f"{PUBLISHED} {' to '.join(f'{value:g}' for value in published)}"


def _published_dot(published: Sequence[float]) -> Trace:
    return scatter(
        *(list(published), [PUBLISHED] * len(published), "lines+markers", "s3", "dot"),
        variant=PUBLISHED,
        hover=f"<b>{PUBLISHED}</b> %{{x}}",
        line={"width": 3},
        marker={"symbol": "diamond", "size": 11, "line": {"width": 1.5}},
    )


def _dot(point: ClaimPoint) -> Trace:
    own = point.value
    interval = f"<br>95% CI {own.low:.3g} to {own.high:.3g}" if own.has_interval else ""
    hover = f"<b>{plain(point.label)}</b><br>{own.value:.3g}{interval}"
    marker = {"symbol": "circle", "size": 10}
    return dot(point.label, own.value, own if own.has_interval else None, "s0", marker, hover)
