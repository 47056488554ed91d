"""Draws an SLO in figures of JCTs against the rate: a line at its limit, with the capacities on it.

In: the limits of an SLO, and capacities. Out: marks and traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reports.figures.drawing import Trace, number, plain
from reports.figures.styles import Style
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point
from servers.basics.phrasing import listed, seconds


class Mark(NamedTuple):
    """A point of a line."""

    amount: float
    value: float | None
    symbol: str
    text: str


class SloLines(NamedTuple):
    limits_s: Mapping[str, float]
    """The limit of each statistic of the SLO."""
    capacities: Mapping[str, VariantCapacity]
    """By variant."""
    ends: bool
    """Whether lines end at capacities: the run chose its rates. A user's rates are all drawn."""

    def ends_lines(self, statistic: str, points: Sequence[Point]) -> bool:
        """Return whether the lines of this statistic end at their capacity, on the line of the SLO,
        which they do if the SLO limits this statistic alone. If no rate is sustained with all
        seeds, no line would be left, so all are drawn at all rates."""
        alone = self.ends and list(self.limits_s) == [statistic]
        return alone and any(map(self.is_sustained, points))

    def is_sustained(self, point: Point) -> bool:
        """Return whether the rate of a point is sustained with all seeds. With only some, its JCT
        is the mean of values that differ by factors."""
        found = self.capacities.get(point.variant)
        return found is None or point.amount is None or found.sustained_at(point.amount).is_all

    def capacity_mark(self, variant: str, statistic: str, style: Style) -> list[Mark]:
        """Return the mark at the capacity of a variant, on the line; none without a number."""
        found = self.capacities.get(variant)
        value = None if found is None else found.load
        if found is None or value is None:
            return []
        text = f"<b>{plain(variant)}</b><br>capacity: {found.text()}"
        return [Mark(value.value, self.limits_s[statistic], f"{style.marker}-open", text)]

    def limit(self, statistic: str, rates: Sequence[float]) -> Trace:
        """Draw the line over all rates, with its value at the left."""
        limit_s = self.limits_s[statistic]
        return {
            "type": "scatter",
            "x": [min(rates), max(rates)],
            "y": [number(limit_s)] * 2,
            "mode": "lines+text",
            "line": {"width": 1.5, "dash": "dot"},
            "text": [f"SLO: {seconds(limit_s)}", ""],
            "textposition": "top right",
            "hoverinfo": "skip",
            "meta": {"colour": "soft", "kind": "limit"},
        }

    def notes(self, statistic: str, points: Sequence[Point]) -> list[str]:
        if self.ends_lines(statistic, points):
            return [
                "Dotted: the SLO, where each line ends at its capacity (hollow). Rates sustained"
                " with only some seeds are in the tables below."
            ]
        return ["Dotted: the SLO's limit."] if statistic in self.limits_s else []


def band_note(names: Sequence[str]) -> list[str]:
    return [f"{'Bands' if len(names) > 1 else 'Band'}: 95% CI of {listed(names)}."] if names else []
