"""Formats capacities as the rows of a table, for the page and for a terminal.

In: capacities over seeds. Out: rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from reports.answer.capacity_context import MachinePrice
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.loads import AGENTS, RATES
from reports.numbers import DASH, digits
from reports.statistics.bootstrap import limits
from reports.statistics.capacities import VariantCapacity
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import times

KINDS = {Kind.NEVER: "none", Kind.ALWAYS: "all", Kind.OPEN: "unfinished"}
"""What a table has instead of a capacity."""


class CapacityRow(NamedTuple):
    variant: str
    is_reference: bool
    wins: bool
    load: str
    interval: str
    ratio: str
    ratio_interval: str
    gpus: str
    """GPUs for one job per second, or agents per GPU; fractional. None for a reference."""
    usd: str
    """Cost of a thousand jobs, or of an agent for a month."""


def capacity_rows(answer: Answer, price: MachinePrice) -> list[CapacityRow]:
    """Return a row per variant, the highest capacity first."""
    ordered = sorted(answer.capacities, key=lambda capacity: -_sort_value(capacity))
    return [_row(capacity, capacity.variant in answer.winners, price) for capacity in ordered]


def _sort_value(capacity: VariantCapacity) -> float:
    value = capacity.load
    if value is None:
        return math.inf if capacity.kind is Kind.ALWAYS else 0.0
    return value.value


def _row(capacity: VariantCapacity, wins: bool, price: MachinePrice) -> CapacityRow:
    value, ratio = capacity.load, capacity.ratio
    if value is None:
        shown = KINDS[capacity.kind]
        return CapacityRow(capacity.variant, bool(capacity.reference), wins, shown, *([DASH] * 5))
    gpus, usd = price.gpus / value.value, price.usd(value.value, capacity.ladder)
    if capacity.ladder is AGENTS:
        gpus = 1 / gpus
    if capacity.reference:
        gpus = usd = math.nan
    return CapacityRow(
        capacity.variant,
        bool(capacity.reference),
        wins,
        digits(value.value),
        limits(value),
        DASH if ratio is None else times(ratio.value),
        DASH if ratio is None else limits(ratio),
        digits(gpus),
        digits(usd),
    )


def capacity_table(answer: Answer, price: MachinePrice) -> Table | None:
    """Return the table for the page; it has no cost column if the hardware has no price. None
    without capacities."""
    rows = capacity_rows(answer, price)
    priced = any(row.usd != DASH for row in rows)
    ladder = answer.capacities[0].ladder if answer.capacities else RATES
    first = ladder.unit[:1].upper() + ladder.unit[1:]
    gpus = "Agents per GPU" if ladder is AGENTS else "GPUs per job/s"
    other = "Jobs/s" if ladder is AGENTS else "Jobs in flight"
    limited = ["Limited by"] if answer.limited_by else []
    heads = ["Variant", first, "95% CI", "Ratio", "95% CI", *limited, "Fails first", other, gpus]
    found = []
    for row in rows:
        by, fails = answer.limited_by.get(row.variant), answer.fails_first.get(row.variant)
        units = answer.other_units.get(row.variant)
        cells = [
            TableCell(row.load, row.wins),
            *map(TableCell, (row.interval, row.ratio, row.ratio_interval)),
            *([TableCell(by.bottleneck if by else DASH)] if limited else []),
            TableCell(fails.title, kind="words", lines=tuple(fails.reasons))
            if fails
            else TableCell(DASH),
            TableCell(units.text(ladder), lines=units.lines(ladder)) if units else TableCell(DASH),
            *map(TableCell, (row.gpus, *([row.usd] * priced))),
        ]
        found.append(TableRow(row.variant, cells, row.is_reference))
    return Table([*heads, *([ladder.cost] * priced)], found) if found else None
