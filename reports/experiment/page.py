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

from reports.experiment.claims import Check, Finding, judge, verdict
from reports.experiment.setup import Setup, as_json, notes, setups
from reports.figures.drawing import Figure
from reports.figures.legend import Legend, fastest, highlighted, legend
from reports.figures.overview import figures
from reports.figures.styles import Style, styles
from reports.metrics.cells import Results, collect
from reports.page.page import with_figures
from reports.phrasing import counted
from reports.run_folder.atomic import write_file
from reports.run_folder.read import load_run
from reports.run_folder.turns import VIRTUAL
from reports.statistics.points import Point, points

SHOWN = ("jct-mean", "jct-p95")


@dataclass(frozen=True, slots=True)
class ArmRun:
    name: str
    x: float | None
    """Position on the figure's axis, if arms differ in a number."""
    folder: Path


@dataclass(frozen=True, slots=True)
class ExperimentText:
    """The texts of an experiment, without its numbers."""

    name: str
    title: str
    source: str
    source_engine: str
    claim: str
    assumes: str
    not_testable: str
    axis: str


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    path: Path
    verdict: str
    findings: tuple[Finding, ...]
    failed: tuple[str, ...] = ()
    """Cells that failed a gate, each with its gates."""
    setups: Mapping[Setup, tuple[str, ...]] = field(default_factory=dict)
    """Names of arms by their setup."""


def write_experiment(
    about: ExperimentText, arms: Sequence[ArmRun], checks: Sequence[Check], folder: Path
) -> ExperimentReport:
    runs = [load_run(arm.folder) for arm in arms]
    results = [collect(run) for run in runs]
    cells = {arm.name: result.cells for arm, result in zip(arms, results, strict=True)}
    findings = tuple(judge(check, cells) for check in checks)
    drawn, variants = _figures(about, arms, results, [run.sweep for run in runs])
    failed = tuple(
        f"{arm.name}: {cell}: {gates}"
        for arm, result in zip(arms, results, strict=True)
        for cell, gates in result.failed_gates.items()
    )
    used = setups({arm.name: run.sweep for arm, run in zip(arms, runs, strict=True)})
    caveats = _caveats(arms, results, runs)
    report = finish(about, findings, folder, drawn, variants, caveats, used)
    return replace(report, failed=failed)


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
    outcome = verdict(findings, about.not_testable)
    page = with_figures().get_template("experiment.html.j2")
    html = page.render(
        about=about,
        verdict=outcome,
        findings=findings,
        figures=drawn,
        legend=variants,
        caveats=caveats,
        setups=used or {},
        notes=notes(used or {}),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "experiment.html", html.encode())
    summary = {
        "name": about.name,
        "verdict": outcome,
        "findings": [{n: getattr(f, n) for n in Finding.__slots__} for f in findings],
        "source_engine": about.source_engine,
        "setups": as_json(used or {}),
        "caveats": list(caveats),
    }
    content = orjson.dumps(summary, option=orjson.OPT_INDENT_2)
    write_file(folder / "experiment.json", content)
    return ExperimentReport(folder / "experiment.html", outcome, findings, setups=used or {})


def _figures(
    about: ExperimentText,
    arms: Sequence[ArmRun],
    results: Sequence[Results],
    sweeps: Sequence[Mapping[str, Any]],
) -> tuple[list[Figure], Legend]:
    """Draw one figure over all arms if they differ in a number, otherwise one figure per arm."""
    variants = {v["name"]: v for sweep in sweeps for v in sweep["variants"]}
    baseline = str(sweeps[0]["baseline"])
    style = styles(variants.values())
    found = [points(result, str(s["baseline"])) for result, s in zip(results, sweeps, strict=True)]
    everything = [point for mine in found for point in mine]
    last = everything[-1].load if everything else None
    chosen = highlighted(everything, [baseline], fastest(everything, last))
    shown = legend(list(style), style, chosen, [baseline])
    if all(arm.x is not None for arm in arms):
        moved = [replace(p, jps=arm.x) for arm, ps in zip(arms, found, strict=True) for p in ps]
        return _over_axis(about, moved, style), shown
    drawn = []
    for number, (arm, mine) in enumerate(zip(arms, found, strict=True)):
        for figure in figures(mine, style, [baseline]):
            if figure.id == SHOWN[0]:
                title = f"{arm.name}: {figure.title[0].lower()}{figure.title[1:]}"
                drawn.append(replace(figure, id=f"arm-{number}", title=title))
    return drawn, shown


def _over_axis(
    about: ExperimentText, moved: Sequence[Point], style: Mapping[str, Style]
) -> list[Figure]:
    drawn = []
    for number, load in enumerate(dict.fromkeys(p.load for p in moved)):
        mine = [replace(p, load=f"{p.jps:g}") for p in moved if p.load == load]
        for figure in figures(mine, style, []):
            if figure.id in SHOWN:
                figure.spec["layout"]["xaxis"]["title"] = {"text": about.axis}
                what = figure.title.removesuffix(" against rate")
                title = f"{what} at {load}, by {about.axis}"
                drawn.append(replace(figure, id=f"{figure.id}-{number}", title=title))
    return drawn


def _caveats(arms: Sequence[ArmRun], results: Sequence[Results], runs: Sequence[Any]) -> list[str]:
    caveats: list[str] = []
    engines = {str(run.sweep.get("engine")) for run in runs}
    caveats += [f"No GPU was used: {VIRTUAL[e]}." for e in sorted(engines) if e in VIRTUAL]
    for arm, result in zip(arms, results, strict=True):
        saturated = int(result.cells["saturated"].sum()) if len(result.cells) else 0
        if saturated:
            caveats.append(
                f"{arm.name}: {counted(saturated, 'cell')} of {len(result.cells)} past saturation, "
                "so their mean JCT grows with the length of the run."
            )
        caveats += [f"{arm.name}: {name} has no result ({why})." for name, why in result.missing]
    return caveats
