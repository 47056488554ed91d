"""States what limits the capacity of each variant, what fails first above it, and what its turns
wait for there.

In: capacities, the cells of the search, and the SLO. Out: limits with the shares of a turn's time
at the lowest loads that are not sustained, and sentences. The limit (the SLO, compute, KV memory,
or the recovery from a burst) needs the reference `unlimited-kv`: docs/design/statistics.md, "Which
limit binds".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from reports.capacity.estimate import Kind
from reports.capacity.slo import Slo
from reports.loads import Ladder
from reports.metrics.cells import cells_at
from reports.metrics.turn_time import AFTER_FIRST_TOKEN, BEFORE_FIRST_TOKEN, OF_FIRST_TURNS
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import (
    EQUAL_WITHIN,
    SeedShare,
    VariantCapacity,
    capacity_ratio,
    some_seeds,
)
from servers.basics.phrasing import listed, share
from servers.policies.base import UNLIMITED_KV
from servers.policies.fcfs import Fcfs


class Bottleneck(StrEnum):
    SLO = "SLO"
    COMPUTE = "compute"
    KV_MEMORY = "KV memory"
    RECOVERY = "recovery"
    UNCLEAR = "unclear"
    """The seeds do not show whether unlimited KV memory sustains more."""


@dataclass(frozen=True, slots=True)
class LimitedBy:
    bottleneck: Bottleneck
    share: Estimate
    """The capacity ÷ that with unlimited KV memory behind the same router, paired by seed."""


def limited_by(capacities: Sequence[VariantCapacity], *, burst: bool) -> dict[str, LimitedBy]:
    """Return the limits by variant, for capacities that are numbers. `burst`: cells begin with a
    burst of jobs."""
    found = [c for c in capacities if c.kind is Kind.FOUND]
    references = {_placement(c.variant): c for c in found if c.reference == UNLIMITED_KV}
    limits = {}
    for each in found:
        reference = references.get(_placement(each.variant))
        if each.reference or reference is None:
            continue
        share = capacity_ratio(each.loads, reference.loads)
        if share is not None:
            limits[each.variant] = LimitedBy(_limit(each, share, burst), share)
    return limits


def _placement(variant: str) -> str:
    """Return the end of the name that states the router and the split of engines."""
    return "".join(variant.partition("@")[1:])


def _limit(capacity: VariantCapacity, share: Estimate, burst: bool) -> Bottleneck:
    misses_slo = bool(capacity.missed and capacity.missed[0][0])
    if share.value >= 1 - EQUAL_WITHIN:
        return Bottleneck.SLO if misses_slo else Bottleneck.COMPUTE
    if share.has_interval and share.high >= 1:
        return Bottleneck.UNCLEAR
    return Bottleneck.RECOVERY if burst and not misses_slo else Bottleneck.KV_MEMORY


def unlimited_kv_sentences(
    shown: Sequence[VariantCapacity],
    capacities: Iterable[VariantCapacity],
    limits: Mapping[str, LimitedBy],
) -> list[str]:
    """State what unlimited KV memory would sustain, and how much of it is reached."""
    sentences = []
    for reference in capacities:
        place = _placement(reference.variant)
        beside = [each.variant for each in shown if _placement(each.variant) == place]
        if reference.reference != UNLIMITED_KV or reference.load is None or not beside:
            continue
        known = [name for name in beside if name in limits]
        shares = [
            f"{name} {'reaches ' if name == known[0] else ''}{100 * limits[name].share.value:.3g}%"
            for name in known
        ]
        sentences.append(
            f"With unlimited KV memory {Fcfs.name}{place} would sustain {reference.text()}"
            f"{', of which ' if shares else ''}{listed(shares)}."
        )
    return sentences


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
