"""Formats capacities as the rows of a table, for pages and for a terminal.

In: capacities over seeds. Out: rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from reports.answer.capacity_context import MachinePrice
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.loads import AGENTS, RATES
from reports.numbers import DASH, digits
from reports.statistics.bootstrap import Estimate, limits
from reports.statistics.capacities import VariantCapacity
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import times

KINDS = {Kind.NEVER: "none", Kind.ALWAYS: "all", Kind.OPEN: "unfinished"}
"""What a table has instead of a capacity."""


def capacity_rows(answer: Answer) -> list[TableRow]:
    """Return the capacity of each variant and its ratio to the baseline's, both with intervals, the
    highest capacity first."""
    ordered = sorted(answer.capacities, key=lambda capacity: -_sort_value(capacity))
    return [_row(capacity, capacity.variant in answer.winners) for capacity in ordered]


def _sort_value(capacity: VariantCapacity) -> float:
    value = capacity.load
    if value is None:
        return math.inf if capacity.kind is Kind.ALWAYS else 0.0
    return value.value


def _row(capacity: VariantCapacity, wins: bool) -> TableRow:
    first, *others = (*with_limits(capacity.load), *with_limits(capacity.ratio, times))
    shown = KINDS.get(capacity.kind, first)
    cells = [TableCell(shown, wins), *map(TableCell, others)]
    return TableRow(capacity.variant, cells, bool(capacity.reference))


def with_limits(value: Estimate | None, show: Callable[[float], str] = digits) -> tuple[str, str]:
    return (DASH, DASH) if value is None else (show(value.value), limits(value))


def _needs(capacity: VariantCapacity, price: MachinePrice) -> tuple[str, str]:
    """Return the GPUs for one job per second, or the agents per GPU, which may be fractional, and
    the cost of a thousand jobs, or of an agent for a month. A reference has none."""
    if capacity.load is None or capacity.reference:
        return DASH, DASH
    value, ladder = capacity.load.value, capacity.ladder
    gpus = value / price.gpus if ladder is AGENTS else price.gpus / value
    return digits(gpus), digits(price.usd(value, ladder))


def capacity_table(answer: Answer, price: MachinePrice) -> Table | None:
    """Return the table for the page; it has no cost column if the hardware has no price. None
    without capacities."""
    needs = {each.variant: _needs(each, price) for each in answer.capacities}
    priced = any(usd != DASH for _, usd in needs.values())
    ladder = answer.capacities[0].ladder if answer.capacities else RATES
    first = ladder.unit[:1].upper() + ladder.unit[1:]
    gpus = "Agents per GPU" if ladder is AGENTS else "GPUs per job/s"
    other = "Jobs/s" if ladder is AGENTS else "Jobs in flight"
    limited = ["Limited by"] if answer.limited_by else []
    heads = ["Variant", first, "95% CI", "Ratio", "95% CI", *limited, "Fails first", other, gpus]
    found = []
    for row in capacity_rows(answer):
        by, fails = answer.limited_by.get(row.name), answer.fails_first.get(row.name)
        units = answer.other_units.get(row.name)
        cells = [
            *row.cells,
            *([TableCell(by.bottleneck if by else DASH)] if limited else []),
            TableCell(fails.title, kind="words", lines=tuple(fails.reasons))
            if fails
            else TableCell(DASH),
            TableCell(units.text(ladder), lines=units.lines(ladder)) if units else TableCell(DASH),
            *map(TableCell, needs[row.name][: 1 + priced]),
        ]
        found.append(row._replace(cells=cells))
    return Table([*heads, *([ladder.cost] * priced)], found) if found else None
