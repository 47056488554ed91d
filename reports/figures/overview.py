"""Draws the overview figures: each metric against the rate, or by variant.

In: points. Out: figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reports.figures.drawing import (
    Figure,
    Spec,
    Trace,
    dot,
    number,
    plain,
    short,
    wide_spread,
)
from reports.figures.slo_lines import Mark, SloLines, band_note
from reports.figures.styles import Style
from reports.statistics.bootstrap import interval
from reports.statistics.points import Point
from servers.basics.phrasing import seconds, share, times

NO_HITS = "The cache-hit ratio is not drawn: this server does not report it."


class Measure(NamedTuple):
    id: str
    title: str
    axis: str
    value: Callable[[Point], float]
    band: bool
    log: bool
    note: str
    terms: tuple[str, ...]
    statistic: str = ""
    """The statistic of an SLO that this measure shows."""


MEASURES = (
    Measure(
        *("jct-mean", "Mean JCT", "seconds", lambda p: p.jct_mean_s.value, True, True),
        "Mean time from a job's arrival to its last token: less is better.",
        ("JCT", "95% CI"),
        "mean",
    ),
    Measure(
        *("jct-p95", "P95 JCT", "seconds", lambda p: p.jct_s["jct_p95_s"], False, True),
        "95% of the jobs finish within this time. Less is better.",
        ("JCT", "P95"),
        "p95",
    ),
    Measure(
        *("throughput", "Throughput", "jobs/s", lambda p: p.throughput_jobs_per_s, False, False),
        "Jobs that finish per second: equal to the rate as long as the machine keeps up.",
        ("Job", "Saturation"),
    ),
    Measure(
        *("hits", "Cache-hit ratio", "of prompt tokens", lambda p: p.hit_ratio, False, False),
        "Prompt tokens that are not computed, because their KV is in the cache or a tier.",
        ("Prefix-cache hit", "Tier"),
    ),
    Measure(
        *("goodput-turns", "Turns within the SLO", "share of the turns"),
        *(lambda p: p.pooled.get("goodput_turns", math.nan), False, False),
        "Goodput: turns whose own latencies meet the limits. More is better.",
        ("SLO", "TTFT"),
    ),
    Measure(
        *("goodput-jobs", "Jobs within the SLO", "share of the jobs"),
        *(lambda p: p.pooled.get("goodput_jobs", math.nan), False, False),
        "Goodput: jobs that meet the limits, with all of their turns. More is better.",
        ("SLO", "Job"),
    ),
)


def figures(
    points: Sequence[Point],
    style: Mapping[str, Style],
    emphasised: Sequence[str],
    slo: SloLines | None = None,
) -> list[Figure]:
    """Draw metrics against the rate, or by variant if there is one load or loads are not rates.
    Metrics that no point has are left out. Against the rate, JCT figures have a line at the limit
    of the SLO, where each variant's line ends at its capacity.
    """
    by_rate = len({p.load for p in points}) > 1 and all(p.amount is not None for p in points)

    def draw(measure: Measure) -> Spec:
        if by_rate:
            return _against_rate(measure, points, style, emphasised, slo)
        return _by_variant(measure, points, style, emphasised)

    return [
        Figure(
            measure.id,
            f"{measure.title} against {points[0].ladder.short}" if by_rate else measure.title,
            {"": draw(measure)},
            wide_spread(map(measure.value, points)) if measure.log else None,
            terms=measure.terms,
        )
        for measure in MEASURES
        if not all(math.isnan(measure.value(p)) for p in points)
    ]


def _against_rate(
    measure: Measure,
    points: Sequence[Point],
    style: Mapping[str, Style],
    emphasised: Sequence[str],
    slo: SloLines | None,
) -> Spec:
    traces: list[Trace] = []
    banded: list[str] = []
    for name in dict.fromkeys(p.variant for p in points):
        mine = [p for p in points if p.variant == name]
        ends: list[Mark] = []
        if slo is not None and slo.ends_lines(measure.statistic, points):
            mine = [p for p in mine if slo.is_sustained(p)]
            ends = slo.capacity_mark(name, measure.statistic, style[name])
        within = [
            p for p in mine if p.jct_mean_s.has_interval and (slo is None or slo.is_sustained(p))
        ]
        if name in emphasised and measure.band and within:
            traces.append(_band(within, style[name].colour))
            banded.append(name)
        if mine or ends:
            traces.append(_line(measure, name, mine, style[name], ends))
    notes = [measure.note, *band_note(banded)]
    if slo is not None and measure.statistic in slo.limits_s:
        traces.append(slo.limit(measure.statistic, [x for trace in traces for x in trace["x"]]))
        notes += slo.notes(measure.statistic, points)
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": points[0].ladder.axis}},
            "yaxis": {"title": {"text": f"{measure.title}, {measure.axis}"}, "rangemode": "tozero"},
        },
        "alt": _alt(measure, points, "Line chart, one line per variant"),
        "value": "y",
        "labelled": True,
        "note": " ".join(notes),
    }


def _line(
    measure: Measure, name: str, mine: Sequence[Point], style: Style, ends: Sequence[Mark]
) -> Trace:
    marks = sorted(
        [*(_mark(measure, p, style) for p in mine if p.amount is not None), *ends],
        key=lambda mark: mark.amount,
    )
    return {
        "type": "scatter",
        "name": plain(name),
        "x": [mark.amount for mark in marks],
        "y": [mark.value for mark in marks],
        "mode": "lines+markers",
        "line": {"width": 2.5, "dash": style.dash},
        "marker": {
            "symbol": [mark.symbol for mark in marks],
            "size": 8,
            "line": {"width": 1.5},
        },
        "text": [mark.text for mark in marks],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"colour": style.colour, "variant": name, "kind": "line"},
    }


def _mark(measure: Measure, point: Point, style: Style) -> Mark:
    symbol = f"{style.marker}-open" if point.saturated else style.marker
    return Mark(point.amount or 0.0, number(measure.value(point)), symbol, _hover(point))


def _band(mine: Sequence[Point], colour: str) -> Trace:
    """Draw the 95% interval of the mean, as a closed polygon."""
    x = [p.amount for p in mine]
    return {
        "type": "scatter",
        "x": x + x[::-1],
        "y": [p.jct_mean_s.high for p in mine] + [p.jct_mean_s.low for p in mine][::-1],
        "fill": "toself",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "meta": {"colour": colour, "variant": mine[0].variant, "kind": "band"},
    }


def _by_variant(
    measure: Measure,
    points: Sequence[Point],
    style: Mapping[str, Style],
    emphasised: Sequence[str],
) -> Spec:
    """Draw a dot per variant, the best on top."""
    order = sorted(points, key=measure.value, reverse=not measure.id.startswith("jct"))
    traces = [_dot(measure, p, style[p.variant], p.variant in emphasised) for p in order]
    layout = {
        "xaxis": {"title": {"text": f"{measure.title}, {measure.axis}"}, "rangemode": "tozero"},
        "yaxis": {"automargin": True, "type": "category"},
    }
    names = dict.fromkeys(p.variant for p in order)
    return {
        "data": traces,
        "layout": layout,
        "alt": _alt(measure, points, "Dot plot, one dot per variant"),
        "value": "x",
        "note": measure.note,
        "rows": [[name, plain(short(name))] for name in names],
    }


def _dot(measure: Measure, point: Point, look: Style, strong: bool) -> Trace:
    marker = {
        "symbol": f"{look.marker}-open" if point.saturated else look.marker,
        "size": 12 if strong else 9,
    }
    interval = point.jct_mean_s if measure.band else None
    x = number(measure.value(point))
    return dot(point.variant, x, interval, look.colour, marker, _hover(point))


def _hover(point: Point) -> str:
    hits = ", ".join(f"{k} {share(v)}" for k, v in point.hits.items() if v) or "none"
    own = point.jct_mean_s
    lines = [
        f"<b>{plain(point.variant)}</b> · {plain(point.load)}",
        f"mean {seconds(own.value)} ({seconds(own.low)} to {seconds(own.high)})",
        f"P95 {seconds(point.jct_s['jct_p95_s'])} · {point.throughput_jobs_per_s:.3g} jobs/s",
        f"hits: {hits}",
    ]
    if point.against is not None:
        gain = point.against.mean
        lines.append(f"{times(gain.value)} as fast as the baseline ({interval(gain)})")
    if point.saturated:
        lines.append("past saturation")
    return "<br>".join(lines)


def _alt(measure: Measure, points: Sequence[Point], kind: str) -> str:
    shown = [p for p in points if p.load == points[-1].load]
    low, high = (pick(shown, key=measure.value) for pick in (min, max))
    return (
        f"{kind}: {measure.title} in {measure.axis}. With {points[-1].load} from"
        f" {measure.value(low):.3g} ({low.variant}) to {measure.value(high):.3g} ({high.variant})."
        " All values are in the table of cells."
    )
