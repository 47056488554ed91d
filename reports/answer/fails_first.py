"""States what fails first above the capacity of each variant, and what its turns wait for there.

In: capacities, the cells of the search, and the SLO. Out: limits with the shares of a turn's time
at the lowest loads that are not sustained, and sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from reports.capacity.slo import Slo
from reports.loads import Ladder
from reports.metrics.cells import cells_at
from reports.metrics.turn_time import AFTER_FIRST_TOKEN, BEFORE_FIRST_TOKEN, OF_FIRST_TURNS
from reports.statistics.capacities import SeedShare, VariantCapacity, some_seeds
from servers.basics.phrasing import share

NO_STEADY_STATE = "no steady state"
EVERY_PART = (*BEFORE_FIRST_TOKEN, *AFTER_FIRST_TOKEN)
TIMES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ttft": ("the wait for the first token", BEFORE_FIRST_TOKEN),
    "first_ttft": ("the wait for the first token of a job", OF_FIRST_TURNS),
    "tpot": ("the time between tokens", AFTER_FIRST_TOKEN),
    "speed": ("the time of a turn", EVERY_PART),
}
"""For each measure of an SLO, the time that it limits and the parts of that time."""
SERVER_TIME = ("the time in the server", EVERY_PART)
"""The same for job completion times, and without a steady state."""
ALONE = "decoding as on an idle machine"
"""Is never the reason."""
NAMES = {
    "queue": "queueing",
    "reload": "reloading KV",
    "recompute": "recomputing evicted context",
    "prefill": "computing new context",
    "stalled": "decoding while other prompts are computed",
    "batching": "decoding in a batch",
    "preempted": "preemption",
    "alone": ALONE,
}
MIN_SECOND = 0.2
"""A second part is named if it has at least this share."""


@dataclass(frozen=True, slots=True)
class FailsFirst:
    """What the lowest loads that are not sustained miss with most seeds."""

    limit: str
    """As SLOs are written; empty without a steady state."""
    title: str
    """The same in words."""
    seeds: SeedShare
    loads: tuple[float, float]
    """The lowest and the highest of these loads: seeds differ."""
    time: str
    """The time that `shares` divide: sums over all measured turns, not only over the slowest."""
    shares: Mapping[str, float]
    """By part, the largest first; empty if the server does not report the parts."""

    @property
    def reasons(self) -> list[str]:
        """The largest part, such as `71% recomputing evicted context`, and the next if it is
        large."""
        return [f"{share(value)} {name}" for name, value in self._largest]

    @property
    def _largest(self) -> list[tuple[str, float]]:
        parts = [part for part in self.shares.items() if part[0] != ALONE]
        return [*parts[:1], *(part for part in parts[1:2] if part[1] >= MIN_SECOND)]

    def sentence(self, variant: str, ladder: Ladder) -> str:
        low, high = (ladder.text(load) for load in self.loads)
        at = low if low == high else f"{low.split()[0]} to {high}"
        what = f"first misses the limit of {self.title}" if self.limit else f"has {self.title}"
        first = f"{variant} {what}{some_seeds(self.seeds)} at {at}."
        if not self._largest:
            return first
        (name, value), *second = self._largest
        more = f", and {share(second[0][1])} {second[0][0]}" if second else ""
        return f"{first} There, {share(value)} of {self.time} is {name}{more}."


def fails_first(
    capacities: Iterable[VariantCapacity], cells: pd.DataFrame, slo: Slo
) -> dict[str, FailsFirst]:
    """Return the limits by variant, without variants that miss none."""
    found = {each.variant: _of(each, cells, slo) for each in capacities}
    return {variant: limit for variant, limit in found.items() if limit is not None}


def _of(capacity: VariantCapacity, cells: pd.DataFrame, slo: Slo) -> FailsFirst | None:
    if not (missed := capacity.missed):
        return None
    limit, seeds = missed[0]
    loads = {
        seed: each.not_sustained
        for seed, each in capacity.by_seed.items()
        if each.is_missed and each.limit == limit and each.not_sustained is not None
    }
    missing = next((each for each in slo.limits if str(each) == limit), None)
    time, parts = TIMES.get(missing.measure if missing else "", SERVER_TIME)
    return FailsFirst(
        limit,
        missing.title if missing else NO_STEADY_STATE,
        seeds,
        (min(loads.values()), max(loads.values())),
        time,
        _shares(cells_at(cells, capacity.variant, loads), parts),
    )


def _shares(rows: pd.DataFrame, parts: tuple[str, ...]) -> dict[str, float]:
    """Return the shares of the means over seeds, the largest first."""
    means = {part: float(rows[part].mean()) for part in parts}
    whole = sum(means.values())
    if math.isnan(whole) or whole <= 0:
        return {}
    ordered = sorted(parts, key=lambda part: -means[part])
    return {
        NAMES[part.removesuffix("_s").rpartition("_")[2]]: means[part] / whole for part in ordered
    }
