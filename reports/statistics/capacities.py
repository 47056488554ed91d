"""Combines the capacities of a variant over seeds, and compares them with the baseline's.

In: a capacity per variant and seed. Out: estimates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from reports.capacity.estimate import Capacity, Kind
from reports.capacity.search import Chain
from reports.loads import RATES, Ladder
from reports.statistics.bootstrap import CONFIDENCE, Estimate
from reports.statistics.over_seeds import Prior, geometric_mean, paired_ratio, reached_by_most
from servers.policies.base import UNLIMITED_KV

EQUAL_WITHIN = 0.03
"""Smaller relative differences between capacities do not matter in practice."""
RATIO_PRIOR = Prior(deviation=0.1, weight=2)
"""The capacity ratios of most seeds are close together and a few are far away, so a small number of
seeds looks more alike than it is. Measured on four pairs of policies, whose logarithms deviate by
0.07 to 0.13 (docs/design/statistics.md, "Coverage")."""


class SeedShare(NamedTuple):
    """A share of the seeds of a run, such as 1/3."""

    seeds: int
    of: int

    def __str__(self) -> str:
        return f"{self.seeds}/{self.of}"

    @property
    def is_all(self) -> bool:
        return self.seeds == self.of

    @property
    def is_mixed(self) -> bool:
        return 0 < self.seeds < self.of


def some_seeds(seeds: SeedShare | None) -> str:
    """Return a phrase such as ` with 1 of 3 seeds`, or "" for all seeds."""
    if seeds is None or seeds.is_all:
        return ""
    return f" with {seeds.seeds} of {seeds.of} seeds"


@dataclass(frozen=True, slots=True)
class VariantCapacity:
    variant: str
    reference: str
    """What no server can give it, as in `CellRecord`; empty unless it is a reference."""
    by_seed: Mapping[int, Capacity]
    ratio: Estimate | None
    """Capacity ÷ the baseline's capacity; None for the baseline, with unlimited KV memory, and if
    either has no number."""
    ladder: Ladder = RATES
    """The kind of load."""

    @property
    def kind(self) -> Kind:
        """Found if every seed's capacity is found."""
        kinds = {each.kind for each in self.by_seed.values()}
        order = (Kind.OPEN, Kind.NEVER, Kind.ALWAYS, Kind.FOUND)
        return next((kind for kind in order if kind in kinds), Kind.OPEN)

    @property
    def never(self) -> SeedShare:
        """The seeds with which no rate is sustained."""
        kinds = [each.kind for each in self.by_seed.values()]
        return SeedShare(kinds.count(Kind.NEVER), len(kinds))

    @property
    def missed(self) -> list[tuple[str, SeedShare]]:
        """What the lowest loads that are not sustained miss, the most frequent first: a limit of
        the SLO, or "" for a steady state. Of seeds whose search has found it."""
        limits = [c.limit for c in self.by_seed.values() if c.is_missed]
        counted = Counter(limits).most_common()
        return [(limit, SeedShare(count, len(limits))) for limit, count in counted]

    @property
    def loads(self) -> dict[int, float]:
        """The capacity by seed, for seeds with which it is found."""
        return {s: c.load for s, c in self.by_seed.items() if c.kind is Kind.FOUND}

    @property
    def sustained_by_seed(self) -> dict[int, float | None]:
        """The highest load that is sustained, by seed."""
        return {seed: each.sustained for seed, each in self.by_seed.items()}

    @property
    def load(self) -> Estimate | None:
        """The geometric mean over seeds; None unless all are found."""
        return geometric_mean(self.loads.values()) if self.kind is Kind.FOUND else None

    @property
    def on_most(self) -> float | None:
        """A load that a new seed sustains with a probability of 95%; None unless all seeds have a
        capacity, and with one seed."""
        if self.kind is not Kind.FOUND or len(self.loads) < 2:
            return None
        return reached_by_most(self.loads.values())

    def text(self) -> str:
        """Return the capacity, which must be a number, with its unit."""
        return self.ladder.text(math.nan if self.load is None else self.load.value)

    def sustained_at(self, load: float) -> SeedShare:
        """Return the share of seeds with which the load is sustained, of those whose search has
        decided it, if any. A capacity is a mean over seeds, so loads near it are sustained with
        some seeds only."""
        every = list(self.by_seed.values())
        decided = [each for each in every if not each.is_open_at(load)] or every
        highest = [each.sustained for each in decided]
        return SeedShare(sum(most is not None and load <= most for most in highest), len(highest))


def capacity_ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Estimate | None:
    """Return the ratio of two policies' capacities by seed on the same machine; None without a
    common seed."""
    return paired_ratio(above, below, CONFIDENCE, RATIO_PRIOR)


def capacities(
    found: Mapping[Chain, Capacity],
    variants: Mapping[str, str],
    baseline: str,
    ladder: Ladder = RATES,
) -> list[VariantCapacity]:
    """Return the capacities in the order of `variants`: what makes each a reference, by name."""
    by_variant = {
        name: {chain.seed: each for chain, each in found.items() if chain.variant == name}
        for name in variants
    }
    every = [
        VariantCapacity(name, variants[name], by_seed, None, ladder)
        for name, by_seed in by_variant.items()
    ]
    base = next((each for each in every if each.variant == baseline), None)
    return [replace(each, ratio=_ratio(each, base)) for each in every]


def from_seeds(
    found: Sequence[VariantCapacity], baseline: str, seeds: Collection[int]
) -> list[VariantCapacity]:
    """Return the capacities over these seeds only."""
    chains = {
        Chain(each.variant, seed): of_seed
        for each in found
        for seed, of_seed in each.by_seed.items()
        if seed in seeds
    }
    variants = {each.variant: each.reference for each in found}
    return capacities(chains, variants, baseline, found[0].ladder if found else RATES)


def _ratio(own: VariantCapacity, base: VariantCapacity | None) -> Estimate | None:
    if base is None or own is base or own.reference == UNLIMITED_KV:
        return None
    if own.kind is not Kind.FOUND or base.kind is not Kind.FOUND:
        return None
    return capacity_ratio(own.loads, base.loads)
