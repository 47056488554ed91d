"""Formats capacities as the rows of a table, for the page and for a terminal.

In: capacities over seeds. Out: rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from reports.answer.capacity_context import Price
from reports.answer.verdict import Answer
from reports.capacity.estimate import Kind
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity
from servers.basics.phrasing import times

DASH = "–"
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
    """GPUs for one job per second; fractional."""
    usd: str
    """Cost of a thousand jobs."""


def capacity_rows(answer: Answer, price: Price) -> list[CapacityRow]:
    """Return a row per variant, the highest capacity first."""
    ordered = sorted(answer.capacities, key=lambda capacity: -_sort_value(capacity))
    return [_row(capacity, capacity.variant in answer.winners, price) for capacity in ordered]


def _sort_value(capacity: VariantCapacity) -> float:
    value = capacity.jobs_per_s
    if value is None:
        return math.inf if capacity.kind is Kind.ALWAYS else 0.0
    return value.value


def _row(capacity: VariantCapacity, wins: bool, price: Price) -> CapacityRow:
    value, ratio = capacity.jobs_per_s, capacity.ratio
    if value is None:
        shown = KINDS[capacity.kind]
        return CapacityRow(capacity.variant, capacity.bound, wins, shown, *([DASH] * 5))
    usd = price.usd_per_1000_jobs(value.value)
    return CapacityRow(
        capacity.variant,
        capacity.bound,
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


def page_rows(rows: Sequence[CapacityRow]) -> dict[str, Any]:
    """Return the table for the page; it has no cost column if the hardware has no price."""
    priced = any(row.usd != DASH for row in rows)
    return {"rows": [row._asdict() for row in rows], "priced": priced}
