"""Draws capacity against the number of jobs that arrive together, a line per policy.

In: the capacities of each policy by burst. Out: a figure.
"""

from __future__ import annotations

from collections.abc import Mapping

from reports.answer.members import Capacities
from reports.figures.drawing import Figure, Spec, Trace, bars, line, number, plain
from reports.figures.styles import Style
from reports.loads import RATES
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
    if all(value.has_interval for value in values):
        drawn["error_y"] = bars(*values)
    return drawn


def _drawn(each: VariantCapacity | None) -> Estimate | None:
    if each is None:
        return None
    return Estimate(0.0, 0.0, 0.0) if each.never.is_all else each.load
