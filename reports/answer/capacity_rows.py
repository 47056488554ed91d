"""Formats capacities as the rows of a table, for the page and for a terminal.

In: capacities over seeds, and points at the common rates. Out: rows; a Rich table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from reports.answer.capacity import Price
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.phrasing import seconds, times
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point

DASH = "–"
UNIT = " jobs/s"
KINDS = {Kind.NEVER: "none", Kind.ALWAYS: "all", Kind.OPEN: "unfinished"}


class CapacityRow(NamedTuple):
    variant: str
    bound: bool
    wins: bool
    jobs_per_s: str
    interval: str
    ratio: str
    ratio_interval: str
    gpus: str
    """GPUs for one job per second, as a fraction of whole machines."""
    usd: str
    """Of a thousand jobs."""


def capacity_rows(answer: Answer, price: Price) -> list[CapacityRow]:
    """Return a row per variant, the highest capacity first."""
    ordered = sorted(answer.capacities, key=lambda each: -_sort_value(each))
    return [_row(each, each.variant in answer.winners, price) for each in ordered]


def _sort_value(each: VariantCapacity) -> float:
    value = each.jobs_per_s
    if value is None:
        return math.inf if each.kind is Kind.ALWAYS else 0.0
    return value.value


def _row(each: VariantCapacity, wins: bool, price: Price) -> CapacityRow:
    value, ratio = each.jobs_per_s, each.ratio
    if value is None:
        shown = KINDS[each.kind]
        return CapacityRow(each.variant, each.bound, wins, shown, *([DASH] * 5))
    usd = price.usd_per_1000_jobs(value.value)
    return CapacityRow(
        each.variant,
        each.bound,
        wins,
        f"{value.value:.3g}",
        _limits(value),
        DASH if ratio is None else times(ratio.value),
        DASH if ratio is None else _limits(ratio),
        f"{price.gpus / value.value:.3g}",
        DASH if math.isnan(usd) else f"{usd:.3g}",
    )


def _limits(estimate: Estimate) -> str:
    return f"{estimate.low:.3g}–{estimate.high:.3g}" if estimate.has_interval else DASH


@dataclass(frozen=True, slots=True)
class CapacityTable:
    """A matrix of policies and rates: the capacity, then the mean JCT at each common rate."""

    rows: Sequence[CapacityRow]
    points: Sequence[Point]
    """With those that are unstable."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rates = list(dict.fromkeys(p.load for p in self.points))
        unbounded = options.update(max_width=10_000)
        # The intervals go first if the terminal is narrow, then the lowest rates.
        for intervals, dropped in [(True, 0), *((False, n) for n in range(len(rates) + 1))]:
            table = self._table(rates[dropped:], intervals, console.is_terminal)
            if Measurement.get(console, unbounded, table).maximum <= options.max_width:
                break
        yield table

    def _table(self, rates: Sequence[str], intervals: bool, terminal: bool) -> Table:
        table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
        heads = ["sustains", *(["95% CI"] * intervals), "ratio", *(["95% CI"] * intervals)]
        table.add_column("policy", no_wrap=True, overflow="ellipsis")
        for head in [*heads, *(f"at {rate.removesuffix(UNIT)}" for rate in rates)]:
            table.add_column(head, justify="right", no_wrap=True)
        at = {(p.variant, p.load): p for p in self.points}
        for row in self.rows:
            limits = ([row.interval], [row.ratio_interval]) if intervals else ([], [])
            values = [row.jobs_per_s, *limits[0], row.ratio, *limits[1]]
            values += [_jct(at.get((row.variant, rate))) for rate in rates]
            style = "dim" if row.bound else "bold" if row.wins else ""
            # Text, not str: Rich would read a name in brackets as markup.
            table.add_row(*(Text(text) for text in (row.variant, *values)), style=style)
        return table


def _jct(point: Point | None) -> str:
    if point is None:
        return DASH
    return "unstable" if point.unstable else seconds(point.jct_mean_s.value)


def page_rows(rows: Sequence[CapacityRow]) -> dict[str, Any]:
    """Return the table of the page, without the cost if the hardware has no price."""
    priced = any(row.usd != DASH for row in rows)
    return {"rows": [row._asdict() for row in rows], "priced": priced}
