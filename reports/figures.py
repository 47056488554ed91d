"""Points in; plotly figures out, as plain JSON.

One style per variant in all figures: colour by policy, dash and marker by variant, so that none is
told by colour alone. Colours are slots that the page fills in, for light and dark; the baseline is
slot 0 (ink), bounds are slot 1 (grey), policies follow in the order of the sweep.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go

from reports.statistics import Point
from reports.words import interval, seconds, share, times

MARKERS = (
    *("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon"),
    *("hexagon", "star", "hourglass", "bowtie"),
)
POLICY_SLOTS = 8
SPREAD_FOR_LOG = 6.0
"""From this ratio of the largest to the smallest JCT on, an axis starts out logarithmic."""


class Style(NamedTuple):
    slot: int
    marker: str
    dash: str


@dataclass(frozen=True, slots=True)
class Figure:
    id: str
    title: str
    alt: str
    spec: dict[str, Any]
    """`data` and `layout` for plotly; colours by `meta.slot`."""
    log: bool | None
    """Whether the value axis starts logarithmic; None where a ratio needs no choice."""


class Measure(NamedTuple):
    id: str
    title: str
    axis: str
    value: Callable[[Point], float]
    band: bool
    log: bool


MEASURES = (
    Measure("jct-mean", "Mean JCT", "seconds", lambda p: p.jct_mean_s.value, True, True),
    Measure("jct-p95", "P95 JCT", "seconds", lambda p: p.jct_s["jct_p95_s"], False, True),
    Measure("throughput", "Throughput", "jobs/s", lambda p: p.throughput_jobs_per_s, False, False),
    Measure("hits", "Cache-hit ratio", "of prompt tokens", lambda p: p.hit_ratio, False, False),
)


def styles(variants: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, Style]:
    """By name, for the variants of a sweep in its order."""
    base_policy = next((v.get("policy") for v in variants if v["name"] == baseline), None)
    slots: dict[Any, int] = {base_policy: 0}
    found: dict[str, Style] = {}
    for place, variant in enumerate(variants):
        policy = variant.get("policy", variant["name"])
        if variant.get("bound"):
            found[variant["name"]] = Style(1, "x", "dot")
            continue
        slot = slots.setdefault(policy, 2 + (len(slots) - 1) % POLICY_SLOTS)
        dash = "dash" if variant.get("offload") else "solid"
        found[variant["name"]] = Style(slot, MARKERS[place % len(MARKERS)], dash)
    return found


def figures(
    points: Sequence[Point], style: Mapping[str, Style], emphasised: Sequence[str]
) -> list[Figure]:
    """Against rate; by variant where all points have one load, or loads that are no rates."""
    if not points:
        return []
    by_rate = len({p.load for p in points}) > 1 and all(p.jps is not None for p in points)
    draw = _against_rate if by_rate else _by_variant
    return [
        Figure(
            measure.id,
            f"{measure.title} against rate" if by_rate else measure.title,
            _alt(measure, points, by_rate),
            _json(draw(measure, points, style, emphasised)),
            _spread(measure, points) >= SPREAD_FOR_LOG if measure.log else None,
        )
        for measure in MEASURES
    ]


def _against_rate(
    measure: Measure,
    points: Sequence[Point],
    style: Mapping[str, Style],
    emphasised: Sequence[str],
) -> go.Figure:
    figure = go.Figure()
    names = list(dict.fromkeys(p.variant for p in points))
    # Drawn last, and so on top: what the answer is about.
    for name in sorted(names, key=lambda n: (n in emphasised, -names.index(n))):
        mine, strong = [p for p in points if p.variant == name], name in emphasised
        if strong and measure.band:
            figure.add_trace(_band(mine, style[name].slot))
        figure.add_trace(_line(measure, mine, style[name], strong))
    ends = [[p for p in points if p.variant == name][-1] for name in emphasised if name in names]
    for point, side in zip(ends, _label_sides([measure.value(p) for p in ends]), strict=True):
        figure.add_trace(_label(measure, point, side, style[point.variant].slot))
    rates = sorted({p.jps for p in points if p.jps is not None})
    figure.update_xaxes(title="jobs per second", tickvals=rates if len(rates) < 6 else None)
    figure.update_yaxes(title=measure.axis, rangemode="tozero")
    return figure


def _line(measure: Measure, mine: Sequence[Point], style: Style, strong: bool) -> go.Scatter:
    return go.Scatter(
        name=html.escape(mine[0].variant),
        x=[p.jps for p in mine],
        y=[_number(measure.value(p)) for p in mine],
        mode="lines+markers",
        line={"width": 3 if strong else 1.5, "dash": style.dash},
        marker={
            "symbol": [f"{style.marker}-open" if p.saturated else style.marker for p in mine],
            "size": 9 if strong else 7,
            "line": {"width": 1.5},
        },
        opacity=1.0 if strong else 0.75,
        text=[_hover(p) for p in mine],
        hovertemplate="%{text}<extra></extra>",
        meta={"slot": style.slot, "variant": mine[0].variant, "kind": "line"},
    )


def _band(mine: Sequence[Point], slot: int) -> go.Scatter:
    """The 95% interval of the mean, there and back."""
    x = [p.jps for p in mine]
    return go.Scatter(
        x=x + x[::-1],
        y=[p.jct_mean_s.high for p in mine] + [p.jct_mean_s.low for p in mine][::-1],
        fill="toself",
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        meta={"slot": slot, "variant": mine[0].variant, "kind": "band"},
    )


def _label(measure: Measure, point: Point, side: str, slot: int) -> go.Scatter:
    return go.Scatter(
        x=[point.jps],
        y=[_number(measure.value(point))],
        mode="markers+text",
        marker={"size": 14, "opacity": 0},  # keeps the name off the line's own marker
        text=[html.escape(point.variant)],
        textposition=f"{side} right",
        cliponaxis=False,
        hoverinfo="skip",
        meta={"slot": slot, "variant": point.variant, "kind": "label"},
    )


def _label_sides(values: Sequence[float]) -> list[str]:
    """Apart where two ends are close."""
    if len(values) == 2 and max(values) < 1.2 * min(values):
        return ["top", "bottom"] if values[0] >= values[1] else ["bottom", "top"]
    return ["middle"] * len(values)


def _by_variant(
    measure: Measure,
    points: Sequence[Point],
    style: Mapping[str, Style],
    emphasised: Sequence[str],
) -> go.Figure:
    """A dot per variant, the best on top."""
    figure = go.Figure()
    order = sorted(points, key=measure.value, reverse=measure.id.startswith("jct"))
    for point in order:
        name, look = point.variant, style[point.variant]
        own, band = point.jct_mean_s, measure.band
        figure.add_trace(
            go.Scatter(
                name=html.escape(name),
                x=[_number(measure.value(point))],
                y=[html.escape(_short(name))],
                mode="markers",
                marker={
                    "symbol": f"{look.marker}-open" if point.saturated else look.marker,
                    "size": 12 if name in emphasised else 9,
                    "line": {"width": 1.5},
                },
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [own.high - own.value],
                    "arrayminus": [own.value - own.low],
                    "thickness": 1.5,
                    "width": 0,
                }
                if band
                else None,
                text=[_hover(point)],
                hovertemplate="%{text}<extra></extra>",
                meta={"slot": look.slot, "variant": name, "kind": "dot"},
            )
        )
    names = list(dict.fromkeys(html.escape(_short(p.variant)) for p in order))
    figure.update_yaxes(
        categoryorder="array", categoryarray=names, automargin=True, tickvals=names, type="category"
    )
    figure.update_xaxes(title=f"{measure.title}, {measure.axis}", rangemode="tozero")
    figure.update_layout(height=110 + 26 * len(names))
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"…{name[-23:]}"


def _hover(point: Point) -> str:
    hits = ", ".join(f"{k} {share(v)}" for k, v in point.hits.items() if v) or "none"
    own = point.jct_mean_s
    lines = [
        f"<b>{html.escape(point.variant)}</b> · {html.escape(point.load)}",
        f"mean {seconds(own.value)} ({seconds(own.low)} to {seconds(own.high)})",
        f"P95 {seconds(point.jct_s['jct_p95_s'])} · {point.throughput_jobs_per_s:.3g} jobs/s",
        f"hits: {hits}",
    ]
    if point.against is not None:
        gain = point.against.mean
        lines.append(f"{times(gain.value)} the baseline ({interval(gain)})")
    if point.saturated:
        lines.append("past saturation")
    return "<br>".join(lines)


def _alt(measure: Measure, points: Sequence[Point], by_rate: bool) -> str:
    """What a reader who cannot see the figure should know of it."""
    shown = [p for p in points if p.load == points[-1].load]
    low, high = (pick(shown, key=measure.value) for pick in (min, max))
    kind = "Line chart, one line per variant" if by_rate else "Dot plot, one dot per variant"
    return (
        f"{kind}: {measure.title} in {measure.axis}. With {points[-1].load} from"
        f" {measure.value(low):.3g} ({low.variant}) to {measure.value(high):.3g} ({high.variant})."
        " All values are in the table of cells."
    )


def _spread(measure: Measure, points: Sequence[Point]) -> float:
    values = [v for v in map(measure.value, points) if v > 0]
    return max(values) / min(values) if values else 1.0


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _json(figure: go.Figure) -> dict[str, Any]:
    figure.update_layout(template=None)
    spec: dict[str, Any] = figure.to_plotly_json()
    spec["layout"].pop("template", None)
    return spec
