"""Measures how often `bench sweep --until separated` decides wrongly, on simulated capacities.

In: nothing. Out: a table of docs/design/statistics.md, "Coverage".

python -m tools.separation

The first of `CONTENDERS` schedulers has a capacity of 1, and all others have the same share of it.
The logarithm of the ratio of two capacities deviates by `DEVIATION` between seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reports.capacity.estimate import Capacity, Kind
from reports.statistics.bootstrap import Floats
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity
from reports.statistics.seeds_needed import MAX_SEEDS
from reports.statistics.separation import is_separated, undecided

CONTENDERS = (2, 10)
SHARES = (1.0, 0.95, 0.9, 0.8, 0.6)
DEVIATION = 0.1
COUNTS = (3, 6, 12, MAX_SEEDS)
SAMPLES = 1000
SEED = 1


class Outcomes(NamedTuple):
    wrong: float
    """Share of the samples in which a scheduler is found to be lower than one that is not higher,
    or equal to one that is more than 3% higher."""
    undecided: float
    """Share of the samples that are not decided with the most seeds."""
    seeds: float
    """Mean number of seeds."""


def outcomes(contenders: int, share: float, samples: int = SAMPLES) -> Outcomes:
    rng = np.random.default_rng(SEED)
    truth = np.array([1.0, *[share] * (contenders - 1)])
    wrong = left = seeds = 0
    for _ in range(samples):
        noise = rng.normal(0, DEVIATION / math.sqrt(2), (contenders, MAX_SEEDS))
        drawn = truth[:, None] * np.exp(noise)
        for count in COUNTS:
            found = found_with({str(k): own[:count].tolist() for k, own in enumerate(drawn)})
            if is_open := bool(undecided(found)):
                continue
            wrong += any_wrong(found, truth)
            break
        left += is_open
        seeds += count
    return Outcomes(wrong / samples, left / samples, seeds / samples)


def found_with(jobs_per_s: Mapping[str, Sequence[float]]) -> list[VariantCapacity]:
    """Return the capacities of schedulers from their values by seed."""
    return [
        VariantCapacity(
            name,
            False,
            {seed: Capacity(Kind.FOUND, each, each, None) for seed, each in enumerate(of_seeds, 1)},
            None,
        )
        for name, of_seeds in jobs_per_s.items()
    ]


def any_wrong(found: list[VariantCapacity], truth: Floats) -> bool:
    estimates = [each.load.value if each.load else math.nan for each in found]
    best = int(np.argmax(estimates))
    for index, each in enumerate(found):
        if index == best:
            continue
        if is_separated(each, found[best], len(found)):
            if truth[index] >= truth[best]:
                return True
        elif truth[index] < (1 - EQUAL_WITHIN) * truth[best]:
            return True
    return False


def table() -> list[str]:
    return [
        "| schedulers | capacity ÷ the best | wrong | undecided with 24 seeds | seeds on average |",
        "|---|---|---|---|---|",
        *(
            f"| {contenders} | {share:g} | {found.wrong:.1%} | {found.undecided:.1%} | "
            f"{found.seeds:.1f} |"
            for contenders in CONTENDERS
            for share in SHARES
            for found in [outcomes(contenders, share)]
        ),
    ]


if __name__ == "__main__":
    print("\n".join(table()))
