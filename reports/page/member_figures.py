"""Draws capacities by machine (per GPU, per dollar, and against the baseline) or by burst.

In: runs with capacities. Out: figures with a group of dots per run and one dot per policy, or a
line per policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reports.answer.members import Capacities, MemberRun
from reports.figures.drawing import Figure, Spec, Trace, bars, line, number, plain, rule, scatter
from reports.figures.styles import Style
from reports.loads import RATES, Ladder
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity


def burst_figures(capacities: Mapping[str, Capacities], style: Mapping[str, Style]) -> list[Figure]:
    """Draw capacity against the burst, a line per variant; nothing without a number."""
    lines = [drawn for name, own in capacities.items() if (drawn := _line(name, own, style[name]))]
    if not lines:
        return []
    spec: Spec = {
        "data": lines,
        "layout": {
            "xaxis": {"title": {"text": "jobs that arrive together"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"capacity, {RATES.unit}"}, "rangemode": "tozero"},
        },
        "alt": "Line chart of capacity against the burst, a line per scheduler. The table has all "
        "values.",
        "value": "y",
        "labelled": True,
        "note": "At 0 no rate that was tried is sustained. There is no point if only some seeds "
        "sustain a rate.",
    }
    title = "Capacity against the burst"
    return [Figure("bursts", title, {"": spec}, None, terms=("Capacity", "SLO"))]


def _line(name: str, own: Capacities, look: Style) -> Trace | None:
    found = {burst: value for burst, each in own.items() if (value := _drawn(each)) is not None}
    if not found:
        return None
    values = list(found.values())
    drawn = line(
        *(list(found), [number(value.value) for value in values], look.colour, look.dash),
        variant=name,
        hover=f"<b>{plain(name)}</b><br>%{{x}} jobs: %{{y:.3g}} jobs/s",
    )
    drawn |= {"mode": "lines+markers", "marker": {"symbol": look.marker, "size": 7}}
    if all(value.is_shown for value in values):
        drawn["error_y"] = bars(*values)
    return drawn


def _drawn(each: VariantCapacity | None) -> Estimate | None:
    if each is None:
        return None
    return Estimate(0.0, 0.0, 0.0) if each.never.is_all else each.load


FRAME_HEIGHT, DOT_HEIGHT, GAP_HEIGHT = 80, 15, 22
"""Pixels of a figure besides its dots, of a dot, and between machines."""


class CapacityMeasure(NamedTuple):
    id: str
    title: str
    axis: str
    value: Callable[[MemberRun, VariantCapacity], Estimate | None]
    unit: str
    note: str
    terms: tuple[str, ...]


def measures(ladder: Ladder) -> tuple[CapacityMeasure, ...]:
    """Return what is drawn of capacities on this ladder."""
    things = ladder.axis[:1].upper() + ladder.axis[1:]
    return (
        CapacityMeasure(
            *("per-gpu", f"{things} and GPU", f"{ladder.axis} and GPU", MemberRun.per_gpu),
            f"{ladder.unit} per GPU",
            f"The highest {ladder.noun} that meets the SLO, per GPU. More is better.",
            ("Capacity", "SLO", "95% CI"),
        ),
        CapacityMeasure(
            *("per-dollar", f"Cost in {ladder.cost}", ladder.cost, MemberRun.usd, ladder.cost),
            "At capacity, with the prices below. Less is better.",
            ("Capacity", "95% CI"),
        ),
        CapacityMeasure(
            *("ratio", "Gain of each policy", "capacity ÷ the baseline's"),
            lambda _, each: each.ratio,
            *("x", "The ratio to the baseline on the same machine, paired by seed."),
            ("Capacity", "Baseline", "95% CI"),
        ),
    )


def capacity_figures(runs: Sequence[MemberRun], style: Mapping[str, Style]) -> list[Figure]:
    drawn = measures(runs[0].ladder)
    found = [(measure, _spec(measure, runs, style)) for measure in drawn]
    return [
        Figure(measure.id, measure.title, {"": spec}, None, terms=measure.terms)
        for measure, spec in found
        if spec is not None
    ]


def _spec(
    measure: CapacityMeasure, runs: Sequence[MemberRun], style: Mapping[str, Style]
) -> Spec | None:
    names = list(dict.fromkeys(e.variant for run in runs for e in run.capacities))
    # Drawn from the bottom up.
    traces = [_dots(measure, runs, name, style[name]) for name in reversed(names)]
    traces = [trace for trace in traces if trace["x"]]
    if not traces:
        return None
    labels = [plain(run.label) for run in runs]
    ends = [(x, t["name"], y) for t in traces for x, y in zip(t["x"], t["y"], strict=True)]
    (low, *lowest), (high, *highest) = min(ends), max(ends)
    group = GAP_HEIGHT + DOT_HEIGHT * len(traces)
    return {
        "data": traces,
        "layout": {
            "scattermode": "group",
            "scattergap": GAP_HEIGHT / group,
            "xaxis": {"title": {"text": measure.axis}, "rangemode": "tozero"},
            "yaxis": {
                "automargin": True,
                "type": "category",
                "categoryorder": "array",
                "categoryarray": labels[::-1],
                "ticktext": [label.replace(" on ", "<br>on ") for label in labels],
                "tickvals": labels,
                "range": [-0.5, len(labels) - 0.5],
                "showgrid": False,
            },
            "shapes": [rule("y", index - 0.5, 0.5) for index in range(1, len(labels))],
        },
        "alt": (
            f"Dot plot, a group of dots per machine and one dot per variant: {measure.axis}, from "
            f"{low:.3g} ({' on '.join(lowest)}) to {high:.3g} ({' on '.join(highest)}). The table "
            "has all values."
        ),
        "value": "x",
        "height": FRAME_HEIGHT + group * len(labels),
        "note": measure.note,
    }


def _dots(measure: CapacityMeasure, runs: Sequence[MemberRun], variant: str, look: Style) -> Trace:
    found = [
        (plain(run.label), value)
        for run in runs
        for each in run.capacities
        if each.variant == variant and (value := measure.value(run, each)) is not None
    ]
    values = [value for _, value in found]
    has_intervals = all(value.is_shown for value in values)
    error: Trace = {"error_x": bars(*values)} if has_intervals else {}
    x, y = [value.value for value in values], [label for label, _ in found]
    return scatter(
        *(x, y, "markers", look.colour, "dot"),
        variant=variant,
        hover="%{text}",
        text=_hovers(measure, variant, found),
        orientation="h",
        offsetgroup=variant,
        marker={"symbol": look.marker, "size": 9, "line": {"width": 1.5}},
        **error,
    )


def _hovers(
    measure: CapacityMeasure, variant: str, found: Sequence[tuple[str, Estimate]]
) -> list[str]:
    texts = []
    for label, value in found:
        lines = [f"<b>{plain(variant)}</b> · {label}", f"{value.value:.3g} {measure.unit}"]
        if value.is_shown:
            lines.append(f"95% CI {value.low:.3g} to {value.high:.3g}")
        texts.append("<br>".join(lines))
    return texts
