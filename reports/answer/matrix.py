"""Formats results as a matrix for a terminal: the mean JCT of each policy at each rate.

In: points, and capacities if they were searched. Out: a Rich table that fits the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from reports.answer.capacity_rows import DASH, CapacityRow
from reports.phrasing import seconds
from reports.statistics.points import Point

UNIT = " jobs/s"
MIN_RATES = 3
"""With fewer rates than these, the matrix leaves out the intervals of capacities first."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A row per policy: its capacity, then its mean JCT at each common rate."""

    points: Sequence[Point]
    """With those that are unstable."""
    rows: Sequence[CapacityRow] = ()
    """Empty if no capacities were searched."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=10_000)
        for intervals, loads in self._layouts():
            table = self._table(loads, intervals, console.is_terminal)
            if Measurement.get(console, unbounded, table).maximum <= options.max_width:
                break
        yield table

    def _layouts(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield the number of intervals and the rates of smaller and smaller tables: without the
        interval of the ratio, then without the lowest rates, then without intervals."""
        loads = list(dict.fromkeys(p.load for p in self.points))
        if self.rows:
            yield 2, loads
            yield from ((1, loads[n:]) for n in range(max(len(loads) - MIN_RATES, 0) + 1))
        yield from ((0, loads[n:]) for n in range(len(loads) + 1))

    def _table(self, loads: Sequence[str], intervals: int, terminal: bool) -> Table:
        table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
        table.add_column("policy", no_wrap=True, overflow="ellipsis")
        for head in (*self._heads(intervals), *map(_head, loads)):
            table.add_column(head, justify="right", no_wrap=True)
        at = {(p.variant, p.load): p for p in self.points}
        for variant, style, values in self._lines(intervals):
            cells = (variant, *values, *(_jct(at.get((variant, load))) for load in loads))
            # Text, not str: Rich would read a name in brackets as markup.
            table.add_row(*map(Text, cells), style=style)
        return table

    def _heads(self, intervals: int) -> tuple[str, ...]:
        if not self.rows:
            return ()
        heads = ("sustains", "95% CI", "ratio", "95% CI")
        return heads[: 2 + intervals] if intervals else heads[::2]

    def _lines(self, intervals: int) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        for row in self.rows:
            values = (row.jobs_per_s, row.interval, row.ratio, row.ratio_interval)
            shown = values[: 2 + intervals] if intervals else values[::2]
            yield row.variant, "dim" if row.bound else "bold" if row.wins else "", shown
        if not self.rows:
            bounds = {p.variant: p.bound for p in self.points}
            yield from ((name, "dim" if bound else "", ()) for name, bound in bounds.items())


def _head(load: str) -> str:
    number = load.removesuffix(UNIT)
    return load if number == load else f"{float(number):.3g}/s"


def _jct(point: Point | None) -> str:
    if point is None:
        return DASH
    return "unstable" if point.unstable else seconds(point.jct_mean_s.value)
