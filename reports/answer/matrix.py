"""Formats results as a matrix for a terminal: the mean JCT of each policy at each rate.

In: points, and capacities if they were searched. Out: a Rich table that fits the terminal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from reports.answer.capacity_rows import CapacityRow
from reports.answer.speed_ups import PER_S
from reports.numbers import DASH
from reports.statistics.capacities import SeedShare, VariantCapacity
from reports.statistics.points import Point
from reports.table import Fitted, Layout, Line, right
from servers.basics.phrasing import seconds

UNSTABLE = "unstable"
GATE = "GATE"
MIN_RATES = 3
"""If fewer rates than this fit, the matrix drops the intervals of capacities first."""


@dataclass(frozen=True, slots=True)
class RateMatrix(Fitted):
    """A row per policy: its capacity, then its mean JCT at each common rate."""

    points: Sequence[Point]
    """Including unstable ones."""
    rows: Sequence[CapacityRow] = ()
    """Empty if no capacities were searched."""
    capacities: Sequence[VariantCapacity] = ()
    """The capacities in `rows`, as numbers."""
    note: str = ""
    """A sentence about all capacities, below the table."""

    def layouts(self) -> Iterator[Layout]:
        yield from (self._layout(loads, intervals) for intervals, loads in self._sizes())

    def _sizes(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (number of intervals, rates) of ever smaller tables: first without the interval of
        the ratio, then with fewer rates, then without intervals."""
        loads = list(dict.fromkeys(p.load for p in self.points))
        if not self.rows:
            yield from ((0, loads[n:]) for n in range(len(loads) + 1))
            return
        yield 2, loads
        most = max(len(loads) - MIN_RATES, 0)
        yield from ((1, _around_the_middle(loads, without)) for without in range(most + 1))
        yield from ((0, _around_the_middle(loads, n)) for n in range(len(loads) + 1))

    def _layout(self, loads: Sequence[str], intervals: int) -> Layout:
        marks: set[str] = set()
        lines = []
        for variant, style, values in self._lines(intervals):
            found = [self._jct(variant, load) for load in loads]
            marks |= {mark for _, mark in found} | {text for text, _ in found if text == UNSTABLE}
            cells = (variant, *values, *(" ".join(filter(None, jct)) for jct in found))
            lines.append(Line(cells, style))
        heads = [("policy", "left"), *right((*self._heads(intervals), *map(_head, loads)))]
        unstable = self.points[0].ladder.unstable if self.points else ""
        legend = _legend(marks, unstable)
        return Layout(heads, lines, "\n".join(filter(None, [self.note, *legend])))

    def _jct(self, variant: str, load: str) -> tuple[str, str]:
        """Return the mean JCT and a mark: `GATE` if a cell is invalid, or the share of seeds that
        sustain the rate if not all do. If some do, there is the share only, also instead of
        `unstable`: a mean over such seeds would say nothing."""
        point = next((p for p in self.points if (p.variant, p.load) == (variant, load)), None)
        seeds = self._sustained(variant, load)
        mark = "" if seeds is None or seeds.is_all else str(seeds)
        if point is not None and point.failed_gates and not point.unstable:
            return seconds(point.jct_mean_s.value), GATE
        if seeds is not None and seeds.is_mixed:
            return "", mark
        if point is not None and not point.unstable:
            return seconds(point.jct_mean_s.value), mark
        return (DASH if point is None else UNSTABLE), ""

    def _sustained(self, variant: str, load: str) -> SeedShare | None:
        """Return None if the variant has no capacity, or the load no rate."""
        jps = next((p.amount for p in self.points if p.load == load), None)
        capacity = next((c for c in self.capacities if c.variant == variant), None)
        return None if capacity is None or jps is None else capacity.sustained_at(jps)

    def _heads(self, intervals: int) -> tuple[str, ...]:
        if not self.rows:
            return ()
        heads = ("sustains", "95% CI", "ratio", "95% CI")
        return heads[: 2 + intervals] if intervals else heads[::2]

    def _lines(self, intervals: int) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        for row in self.rows:
            values = (row.load, row.interval, row.ratio, row.ratio_interval)
            shown = values[: 2 + intervals] if intervals else values[::2]
            yield row.variant, "dim" if row.is_reference else "bold" if row.wins else "", shown
        if not self.rows:
            styles = {p.variant: "dim" if p.reference else "" for p in self.points}
            yield from ((name, style, ()) for name, style in styles.items())


def _around_the_middle(loads: Sequence[str], without: int) -> Sequence[str]:
    """Drop `without` rates at the ends, the two lowest first, then the two highest, so that the
    rates around the capacities remain."""
    rounds, more = divmod(without, 4)
    low, high = 2 * rounds + min(more, 2), 2 * rounds + max(more - 2, 0)
    return loads[low : len(loads) - high]


def _legend(marks: Collection[str], unstable: str) -> list[str]:
    shares = sorted({*marks} - {GATE, UNSTABLE, ""})
    lines = [f"{mark}: sustained with {mark.replace('/', ' of ')} seeds." for mark in shares]
    if GATE in marks:
        lines.append(f"{GATE}: a cell failed a validity gate.")
    return [*lines, *([f"{UNSTABLE}: {unstable}."] if UNSTABLE in marks else [])]


def _head(load: str) -> str:
    number = load.removesuffix(PER_S)
    return load if number == load else f"{float(number):.3g}/s"
