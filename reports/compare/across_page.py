"""Draws the comparison of several machines as one HTML page that needs no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from reports.answer.provenance import heading
from reports.compare.across import Across, MachineRun, differing
from reports.compare.across_answer import caveats, findings, headline, rows
from reports.figures.drawing import Figure, Spec, Trace, bars, plain, scatter
from reports.figures.legend import legend
from reports.figures.styles import Style, styles
from reports.loads import Ladder
from reports.numbers import DASH
from reports.page.environment import write_page
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity
from servers.basics.phrasing import counted, seconds

ACROSS = "across.html"


def draw(across: Across, out: Path) -> None:
    variants = {v.name: v for m in across.machines for v in m.sweep.variants}
    style = styles(variants.values())
    drawn = figures(across, style)
    first = across.machines[0].sweep
    workload = first.workload.name
    write_page(
        out,
        "across.html.j2",
        context=[workload, counted(len(across.machines), "machine"), *heading(first)[-1:]],
        headline=headline(across),
        findings=findings(across),
        caveats=caveats(across),
        figures=drawn,
        legend=legend(list(variants), style, list(variants)),
        slo=across.machines[0].slo,
        baseline=first.baseline,
        seeds=across.seeds,
        rows=rows(across),
        ladder=across.machines[0].ladder,
        machines=_machines(across),
    )


def _machines(across: Across) -> list[tuple[str, list[str]]]:
    found = across.machines
    prices = [m.price.usd_per_h for m in found]
    return [
        ("model", [m.model for m in found]),
        ("hardware", [m.hardware for m in found]),
        ("USD per GPU and hour", [DASH if math.isnan(p) else f"{p:g}" for p in prices]),
        ("mean JCT on the idle machine", [seconds(m.idle_mean_s) for m in found]),
        *differing(across),
        ("run", [str(m.folder) for m in found]),
    ]


FRAME_HEIGHT, DOT_HEIGHT, GAP_HEIGHT = 80, 15, 22
"""Pixels of a figure besides its dots, of a dot, and between machines."""


class CapacityMeasure(NamedTuple):
    id: str
    title: str
    axis: str
    value: Callable[[MachineRun, VariantCapacity], Estimate | None]
    unit: str
    note: str
    terms: tuple[str, ...]


def measures(ladder: Ladder) -> tuple[CapacityMeasure, ...]:
    """Return what is drawn of capacities on this ladder."""
    things = ladder.axis[:1].upper() + ladder.axis[1:]
    return (
        CapacityMeasure(
            *("per-gpu", f"{things} and GPU", f"{ladder.axis} and GPU", MachineRun.per_gpu),
            f"{ladder.unit} per GPU",
            f"The highest {ladder.noun} that meets the SLO, per GPU. More is better.",
            ("Capacity", "SLO", "95% CI"),
        ),
        CapacityMeasure(
            *("per-dollar", f"Cost in {ladder.cost}", ladder.cost, MachineRun.usd, ladder.cost),
            "At capacity, with the prices below. Less is better.",
            ("Capacity", "95% CI"),
        ),
        CapacityMeasure(
            *("ratio", "Gain of each policy", "capacity ÷ that of the baseline"),
            lambda _, each: each.ratio,
            *("x", "The ratio to the baseline on the same machine, paired by seed."),
            ("Capacity", "Baseline", "95% CI"),
        ),
    )


def figures(across: Across, style: Mapping[str, Style]) -> list[Figure]:
    drawn = measures(across.machines[0].ladder)
    found = [(measure, _spec(measure, across, style)) for measure in drawn]
    return [
        Figure(measure.id, measure.title, {"": spec}, None, terms=measure.terms)
        for measure, spec in found
        if spec is not None
    ]


def _spec(measure: CapacityMeasure, across: Across, style: Mapping[str, Style]) -> Spec | None:
    names = list(dict.fromkeys(e.variant for m in across.machines for e in m.capacities))
    # Drawn from the bottom up.
    traces = [_dots(measure, across, name, style[name]) for name in reversed(names)]
    traces = [trace for trace in traces if trace["x"]]
    if not traces:
        return None
    labels = [plain(across.label(machine)) for machine in across.machines]
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
            "shapes": [_line_between(index) for index in range(1, len(labels))],
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


def _line_between(index: int) -> dict[str, object]:
    line = {"width": 0.5, "dash": "dot"}
    y = index - 0.5
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _dots(measure: CapacityMeasure, across: Across, variant: str, look: Style) -> Trace:
    found = [
        (plain(across.label(machine)), value)
        for machine in across.machines
        for each in machine.capacities
        if each.variant == variant and (value := measure.value(machine, each)) is not None
    ]
    values = [value for _, value in found]
    has_intervals = all(value.has_interval for value in values)
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
        if value.has_interval:
            lines.append(f"95% CI {value.low:.3g} to {value.high:.3g}")
        texts.append("<br>".join(lines))
    return texts
