"""Draws the overview figures: each metric against the rate, or by variant.

In: points. Out: figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reports.figures.drawing import (
    Figure,
    Spec,
    Trace,
    band,
    dot,
    number,
    plain,
    scatter,
    wide_spread,
)
from reports.figures.knee import Knees
from reports.figures.styles import Style
from reports.numbers import short
from reports.statistics.bootstrap import interval
from reports.statistics.points import Point
from servers.basics.phrasing import listed, seconds, share, times

NO_HITS = "The cache-hit ratio is not drawn: this server does not report it."


class MetricCurve(NamedTuple):
    id: str
    column: str
    """Of the cells."""
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
    MetricCurve(
        *("jct-mean", "jct_mean_s", "Mean JCT", "seconds"),
        *(lambda p: p.jct_mean_s.value, True, True),
        "Mean time from a job's arrival to its last token: less is better.",
        ("JCT", "95% CI"),
        "mean",
    ),
    MetricCurve(
        *("jct-p95", "jct_p95_s", "P95 JCT", "seconds"),
        *(lambda p: p.jct_s["jct_p95_s"], False, True),
        "95% of the jobs finish within this time. Less is better.",
        ("JCT", "P95"),
        "p95",
    ),
    MetricCurve(
        *("throughput", "throughput_jobs_per_s", "Throughput", "jobs/s"),
        *(lambda p: p.throughput_jobs_per_s, False, False),
        "Jobs that finish per second: equal to the rate as long as the machine keeps up.",
        ("Job", "Saturation"),
    ),
    MetricCurve(
        *("hits", "hit_ratio", "Cache-hit ratio", "of prompt tokens"),
        *(lambda p: p.hit_ratio, False, False),
        "Prompt tokens that are not computed, because their KV is in the cache or a tier.",
        ("Prefix-cache hit", "Tier"),
    ),
    MetricCurve(
        *("goodput-turns", "goodput_turns", "Turns within the SLO", "share of the turns"),
        *(lambda p: p.pooled.get("goodput_turns", math.nan), False, False),
        "Goodput: turns whose own latencies meet the limits. More is better.",
        ("SLO", "TTFT"),
    ),
    MetricCurve(
        *("goodput-jobs", "goodput_jobs", "Jobs within the SLO", "share of the jobs"),
        *(lambda p: p.pooled.get("goodput_jobs", math.nan), False, False),
        "Goodput: jobs that meet the limits, with all of their turns. More is better.",
        ("SLO", "Job"),
    ),
)


def figures(
    points: Sequence[Point],
    style: Mapping[str, Style],
    emphasised: Sequence[str],
    knees: Knees | None = None,
) -> list[Figure]:
    """Draw metrics against the rate, or by variant if there is one load or loads are not rates.
    Metrics that no point has are left out. If capacities were searched, lines are those of
    `knees`.
    """
    shown = [m for m in MEASURES if not all(math.isnan(m.value(point)) for point in points)]
    return [_Overview(points, style, emphasised, knees).figure(measure) for measure in shown]


@dataclass(frozen=True, slots=True)
class _Overview:
    points: Sequence[Point]
    style: Mapping[str, Style]
    emphasised: Sequence[str]
    knees: Knees | None

    def figure(self, measure: MetricCurve) -> Figure:
        points, knees = self.points, self.knees
        values = [measure.value(point) for point in points]
        title = f"{measure.title} against {points[0].ladder.short}"
        if knees is not None:
            spec, values = self._with_knees(measure, knees), values + knees.values(measure.column)
        elif len({p.load for p in points}) > 1 and all(p.amount is not None for p in points):
            spec = self._against_rate(measure)
        else:
            spec, title = self._by_variant(measure), measure.title
        log = wide_spread(values) if measure.log else None
        return Figure(measure.id, title, {"": spec}, log, terms=measure.terms)

    def _against_rate(self, measure: MetricCurve) -> Spec:
        names = dict.fromkeys(p.variant for p in self.points)
        by_variant = {name: [p for p in self.points if p.variant == name] for name in names}
        traces, note = self._bands(measure, by_variant)
        lines = [_line(measure, name, own, self.style[name]) for name, own in by_variant.items()]
        return _lines(measure, self.points, traces + lines, note)

    def _with_knees(self, measure: MetricCurve, knees: Knees) -> Spec:
        """Draw every cell of a search. Bands cover the loads that all seeds sustain."""
        sustained = {
            name: [
                p
                for p in self.points
                if p.variant == name and p.amount is not None and each.sustained_at(p.amount).is_all
            ]
            for name, each in knees.capacities.items()
        }
        traces, note = self._bands(measure, sustained)
        traces += knees.draw(measure.column, measure.statistic, self.style)
        how = "Dots: one cell each. Lines: means over seeds. Hollow marks: capacities."
        if measure.statistic in knees.limits_s:
            how += " Dotted: the SLO."
        spec = _lines(measure, self.points, traces, f"{how} {note}".strip())
        # The others stay in grey, so that the knee of every policy can be seen.
        spec["complete"] = True
        return spec

    def _bands(
        self, measure: MetricCurve, by_variant: Mapping[str, Sequence[Point]]
    ) -> tuple[list[Trace], str]:
        """Return the 95% intervals of the emphasised variants, and a note on them."""
        if not measure.band:
            return [], ""
        found = {
            name: within
            for name, mine in by_variant.items()
            if name in self.emphasised and (within := [p for p in mine if p.jct_mean_s.is_shown])
        }
        bands = [_band(within, self.style[name].colour) for name, within in found.items()]
        word = "Bands" if len(found) > 1 else "Band"
        return bands, f"{word}: 95% CI of {listed(list(found))}." if found else ""

    def _by_variant(self, measure: MetricCurve) -> Spec:
        """Draw a dot per variant, the best on top."""
        is_jct = measure.id.startswith("jct")
        order = sorted(self.points, key=measure.value, reverse=not is_jct)
        return {
            "data": [
                _dot(measure, p, self.style[p.variant], p.variant in self.emphasised) for p in order
            ],
            "layout": {
                "xaxis": {
                    "title": {"text": f"{measure.title}, {measure.axis}"},
                    "rangemode": "tozero",
                },
                "yaxis": {"automargin": True, "type": "category"},
            },
            "alt": _alt(measure, self.points, "Dot plot, one dot per variant"),
            "value": "x",
            "note": measure.note,
            "rows": [[n, plain(short(n))] for n in dict.fromkeys(p.variant for p in order)],
        }


def _lines(measure: MetricCurve, points: Sequence[Point], traces: list[Trace], note: str) -> Spec:
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": points[0].ladder.axis}},
            "yaxis": {"title": {"text": f"{measure.title}, {measure.axis}"}, "rangemode": "tozero"},
        },
        "alt": _alt(measure, points, "Line chart, one line per variant"),
        "value": "y",
        "labelled": True,
        "note": f"{measure.note} {note}".strip(),
    }


def _line(measure: MetricCurve, name: str, mine: Sequence[Point], style: Style) -> Trace:
    marks = [p for p in sorted(mine, key=lambda p: p.amount or 0.0) if p.amount is not None]
    symbols = [f"{style.marker}-open" if p.saturated else style.marker for p in marks]
    x, y = [p.amount for p in marks], [number(measure.value(p)) for p in marks]
    return scatter(
        *(x, y, "lines+markers", style.colour, "line"),
        variant=name,
        hover="%{text}",
        text=[_hover(p) for p in marks],
        line={"width": 2.5, "dash": style.dash},
        marker={"symbol": symbols, "size": 8, "line": {"width": 1.5}},
    )


def _band(mine: Sequence[Point], colour: str) -> Trace:
    low, high = [p.jct_mean_s.low for p in mine], [p.jct_mean_s.high for p in mine]
    return band([p.amount for p in mine], low, high, colour, mine[0].variant)


def _dot(measure: MetricCurve, point: Point, look: Style, strong: bool) -> Trace:
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


def _alt(measure: MetricCurve, points: Sequence[Point], kind: str) -> str:
    shown = [p for p in points if p.load == points[-1].load]
    low, high = (pick(shown, key=measure.value) for pick in (min, max))
    return (
        f"{kind}: {measure.title} in {measure.axis}. With {points[-1].load} from"
        f" {measure.value(low):.3g} ({low.variant}) to {measure.value(high):.3g} ({high.variant})."
        " All values are in the table of cells."
    )
