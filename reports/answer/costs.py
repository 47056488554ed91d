"""Computes what jobs and tokens cost at the capacity of each variant, and at an API, and converts
capacities between agents and jobs per second.

In: capacities, the cells of a run, and prices. Out: costs in USD, sentences, and a table. Whatever
a machine does costs its price per hour, so a cost per token divides all of it by the tokens of one
kind. An API is assumed to cache ideally within a job and not between jobs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from reports.answer.capacity_context import MachinePrice
from reports.loads import AGENTS, RATES, Ladder
from reports.metrics.cells import amounts_of, cells_at
from reports.metrics.throughput import LITTLE_WITHIN
from reports.numbers import DASH, digits
from reports.statistics.capacities import VariantCapacity
from reports.table import Table, TableRow, texts
from servers.records.sweep import ApiPriceRecord, SweepRecord

DAY_S = 86_400
ROUNDING = 1e-9


class OtherUnits(NamedTuple):
    """At the highest load that each seed sustains, means over seeds."""

    jobs_per_s: float
    """Jobs that finish per second."""
    in_flight: float
    """Jobs in flight, by Little's law."""
    counted: float
    """Jobs in flight that were counted ÷ the same; NaN if they were not."""

    @property
    def is_exact(self) -> bool:
        """Whether Little's law holds within `LITTLE_WITHIN`, or nothing was counted."""
        return not abs(self.counted - 1) > LITTLE_WITHIN + ROUNDING

    def text(self, ladder: Ladder) -> str:
        return f"{self.jobs_per_s if ladder is AGENTS else self.in_flight:.3g}"

    def lines(self, ladder: Ladder) -> tuple[str, ...]:
        """Return jobs per day, and how far Little's law is off."""
        day = f"{float(f'{self.jobs_per_s * DAY_S:.3g}'):,.0f} a day"
        off = () if self.is_exact else (f"counted: {self.in_flight * self.counted:.3g} in flight",)
        return (*([day] if ladder is AGENTS else []), *off)


def other_units(
    capacities: Iterable[VariantCapacity], cells: pd.DataFrame
) -> dict[str, OtherUnits]:
    """Return numbers by variant, without variants that sustain nothing with some seed."""
    found: dict[str, OtherUnits] = {}
    for each in capacities:
        rows = cells_at(cells, each.variant, each.sustained_by_seed)
        if rows["seed"].nunique() < len(each.by_seed) or rows["jobs_in_flight"].isna().any():
            continue
        in_flight = rows["jobs_in_flight"]
        counted = float((in_flight * rows["little_ratio"]).mean() / in_flight.mean())
        per_s = float(rows["throughput_jobs_per_s"].mean())
        found[each.variant] = OtherUnits(per_s, float(in_flight.mean()), counted)
    return found


MILLION = 1e6
KINDS = ("cached", "new", "generated")
"""Tokens: prompt tokens with KV in a cache, other prompt tokens, and output tokens."""


@dataclass(frozen=True, slots=True)
class JobCost:
    """What a variant's jobs cost on one machine at capacity."""

    variant: str
    ladder: Ladder
    capacity: float
    usd_per_job: float
    usd_per_mtok: Mapping[str, float]
    """Per million tokens of each of `KINDS`; NaN if there are none."""
    api_usd_per_job: float | None = None
    """None without API prices."""
    even_load: float | None = None
    """The load from which one machine costs less than the API, a whole number of agents; None if
    it never does."""


def job_costs(
    capacities: Sequence[VariantCapacity],
    cells: pd.DataFrame,
    price: MachinePrice,
    api: ApiPriceRecord | None,
) -> tuple[JobCost, ...]:
    """Return the costs of variants whose capacity is a number, references excluded; none without a
    price. Tokens and throughput are of the cells at the highest load that each seed sustains."""
    if math.isnan(price.usd_per_h):
        return ()
    found = (
        _cost(each, cells_at(cells, each.variant, each.sustained_by_seed), price, api)
        for each in capacities
        if not each.reference
    )
    return tuple(cost for cost in found if cost is not None)


def _cost(
    capacity: VariantCapacity, cells: pd.DataFrame, price: MachinePrice, api: ApiPriceRecord | None
) -> JobCost | None:
    if capacity.load is None or cells.empty:
        return None
    most = capacity.load.value
    # By definition, a rate that is sustained is the throughput.
    per_load = 1.0
    if capacity.ladder is not RATES:
        per_load = float((cells["throughput_jobs_per_s"] / amounts_of(cells)).mean())
    usd_per_s = price.usd_per_h * price.gpus / 3600
    usd_per_job = usd_per_s / (most * per_load)
    prompt, output = cells["prompt_tokens_per_job"], cells["output_tokens_per_job"]
    cached = cells["hit_ratio"] * prompt
    tokens = zip(KINDS, (cached, prompt - cached, output), strict=True)
    counts = {kind: float(count.mean()) for kind, count in tokens}
    per_mtok = {k: usd_per_job / n * MILLION if n > 0 else math.nan for k, n in counts.items()}
    if api is None:
        return JobCost(capacity.variant, capacity.ladder, most, usd_per_job, per_mtok)
    kept = cells["kept_tokens_per_job"]
    api_usd = api.cached * kept + api.input * (prompt - kept) + api.output * output
    api_usd_per_job = float(api_usd.mean()) / MILLION
    even = usd_per_s / (api_usd_per_job * per_load) if api_usd_per_job else math.inf
    if capacity.ladder is AGENTS and math.isfinite(even):
        # At most the capacity, which need not be whole.
        even = min(max(even, most), math.ceil(even * (1 - 1e-9)))
    return JobCost(
        *(capacity.variant, capacity.ladder, most, usd_per_job, per_mtok, api_usd_per_job),
        even if even <= most else None,
    )


def cost_sentences(
    costs: Sequence[JobCost], winners: Collection[str], sweep: SweepRecord
) -> list[str]:
    """Return what a job costs with a winner and at the API. The cost per load is among the findings
    on capacities, and that per token in the table."""
    names = [sweep.baseline] if sweep.baseline in winners else winners
    first = next((cost for name in names for cost in costs if cost.variant == name), None)
    if first is None:
        if sweep.api_price is None or sweep.price is not None:
            return []
        return [
            "No price is known for this hardware, so nothing is compared with the API's: give"
            " one with --price."
        ]
    if first.api_usd_per_job is None:
        return []
    so = "which is less"
    if first.even_load is not None:
        even = first.ladder.text(first.even_load)
        so = f"so a machine with {first.variant} is cheaper from {even} on"
    return [
        f"A job costs {first.usd_per_job:.3g} USD with {first.variant} at its capacity of"
        f" {first.ladder.text(first.capacity)}. At the API, with its earlier turns cached, it costs"
        f" {first.api_usd_per_job:.3g} USD, {so}."
    ]


def cost_table(costs: Sequence[JobCost]) -> Table | None:
    if not costs:
        return None
    has_api = costs[0].api_usd_per_job is not None
    heads = ["Variant", "Job", *(f"Million {kind} tokens" for kind in KINDS)]
    return Table([*heads, *(["Job at the API", "Cheaper from"] * has_api)], list(map(_row, costs)))


def _row(cost: JobCost) -> TableRow:
    numbers = [digits(cost.usd_per_job), *map(digits, cost.usd_per_mtok.values())]
    if cost.api_usd_per_job is not None:
        even = DASH if cost.even_load is None else cost.ladder.text(cost.even_load)
        numbers += [digits(cost.api_usd_per_job), even]
    return texts(cost.variant, numbers)
