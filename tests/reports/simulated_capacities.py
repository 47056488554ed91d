"""Measures how often the set of the best schedulers is wrong, on simulated capacities.

In: nothing, or a run folder with the capacities of schedulers with many seeds, from which seeds are
drawn instead. Out: the tables that docs/design/statistics.md, "Coverage", summarises: a fixed
number of seeds, `bench sweep --until separated`, and the default, which ends after a minute.

python -m tests.reports.simulated_capacities [RUN]

The logarithm of a capacity deviates between seeds by an effect of the seed, which all schedulers
have, and by a deviation of the scheduler.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reports.capacity.estimate import Capacity, Kind
from reports.run_folder.read import load_run
from reports.statistics.best import MAX_SEEDS, undecided, winners
from reports.statistics.bootstrap import Floats
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity, capacity_ratio
from reports.statistics.searched import searched

COUNTS = (3, 6, 12, MAX_SEEDS)
ROUNDS = (COUNTS, (3,), (3, 6), (3, 6, 12), (3, 5, 8, 12, 18))
"""Seeds of the rounds of `--until separated`, and of a default that ends after a minute."""
SAMPLES = 1000
SEED = 1
SEED_EFFECT = 0.07
DEVIATION = 0.1 / math.sqrt(2)
"""The ratio of two capacities deviates by 0.1."""


class World(NamedTuple):
    about: str
    capacities: Sequence[float]
    deviations: Sequence[float]
    two_modes: bool = False
    """Three of ten seeds are lower by 2.2 deviations, and the others equal: the logarithm has the
    same deviation, but is not normal."""
    by_seed: Floats | None = None
    """Capacities of a run, schedulers × seeds, from which seeds are drawn."""

    def draw(self, rng: np.random.Generator) -> Floats:
        """Return capacities, schedulers × seeds."""
        if self.by_seed is not None:
            seeds = self.by_seed.shape[1]
            drawn = np.log(self.by_seed[:, rng.integers(0, seeds, MAX_SEEDS)])
            means = np.log(self.by_seed).mean(axis=1, keepdims=True)
            # The seeds of the run deviate from their own mean by less than from the true one.
            return np.asarray(np.exp(means + (drawn - means) * math.sqrt(seeds / (seeds - 1))))
        size = len(self.capacities), MAX_SEEDS
        if self.two_modes:
            noise = (0.3 - (rng.random(size) < 0.3)) / math.sqrt(0.3 * 0.7)
        else:
            noise = rng.normal(size=size)
        effect = rng.normal(0, SEED_EFFECT, MAX_SEEDS)
        noise = noise * np.array(self.deviations)[:, None] + effect
        return np.asarray(np.array(self.capacities)[:, None] * np.exp(noise))


def even(count: int, share: float = 1.0, *, two_modes: bool = False) -> World:
    """Return a world in which one has a capacity of 1 and all others the same share of it."""
    about = f"{count}, the others {share:g}" if share < 1 else f"{count} equal"
    about += ", two modes" if two_modes else ""
    return World(about, [1.0, *[share] * (count - 1)], [DEVIATION] * count, two_modes)


def uneven(count: int, *, two_modes: bool = False) -> World:
    deviations = np.linspace(0.02, 0.2, count).tolist()
    about = f"{count} equal, deviations of 0.02 to 0.2" + (", two modes" if two_modes else "")
    return World(about, [1.0] * count, deviations, two_modes)


def wide(count: int) -> World:
    about = f"{count}, the best deviates by 0.2, the others, 0.95, by 0.03"
    return World(about, [1.0, *[0.95] * (count - 1)], [0.2, *[0.03] * (count - 1)])


SIX = World(
    "6: 1, 0.98, 0.93, 0.77, 0.65, 0.51, deviations of 0.03 to 0.16",
    (1, 0.98, 0.93, 0.77, 0.65, 0.51),
    (0.06, 0.03, 0.05, 0.1, 0.16, 0.1),
)
WILD = World(
    "these and one of 0.3 with a deviation of 0.5", (*SIX.capacities, 0.3), (*SIX.deviations, 0.5)
)
FIXED = (
    *(even(count) for count in (2, 5, 12, 22)),
    even(5, two_modes=True),
    *(uneven(count) for count in (5, 22)),
    uneven(22, two_modes=True),
    *(wide(count) for count in (5, 22)),
    SIX,
    WILD,
)
UNTIL = tuple(even(count, share) for count in (2, 10) for share in (1.0, 0.95, 0.9, 0.8, 0.6))


class Set(NamedTuple):
    missed: float
    """Share of the samples in which the set lacks a best scheduler: the one that it lacks most
    often, if several are equal."""
    any_missed: float
    """Share of the samples in which the set lacks any of the schedulers that are best."""
    size: float
    """Mean number of schedulers in the set."""


def fixed(world: World, seeds: int, samples: int = SAMPLES) -> Set:
    rng = np.random.default_rng(SEED)
    truth = np.array(world.capacities)
    sets = np.array([_in_set(world.draw(rng)[:, :seeds]) for _ in range(samples)])
    lacks = ~sets[:, truth == truth.max()]
    return Set(
        float(lacks.mean(axis=0).max()),
        float(lacks.any(axis=1).mean()),
        float(sets.sum(axis=1).mean()),
    )


def _in_set(drawn: Floats) -> list[bool]:
    names = {each.variant for each in winners(found_with(named(drawn)))}
    return [str(k) in names for k in range(len(drawn))]


def world_of(folder: Path) -> World:
    """Return the world of a run, whose baseline is its first scheduler."""
    found = searched(load_run(folder))
    assert found is not None
    seeds = sorted(set.intersection(*(set(each.loads) for each in found.found)))
    by_seed = np.array([[each.loads[seed] for seed in seeds] for each in found.found])
    means = np.exp(np.log(by_seed).mean(axis=1)).tolist()
    return World(f"{folder.name}, {len(seeds)} seeds", means, (), by_seed=by_seed)


class Until(NamedTuple):
    wrong: float
    """Share of the samples in which a scheduler is found to be lower than one that is not higher,
    or equal to one that is more than 3% higher."""
    undecided: float
    """Share of the samples that are not decided with the most seeds."""
    seeds: float
    """Mean number of seeds."""
    held: float
    """Share of the intervals of the ratios to the first scheduler that hold the truth, whatever was
    decided: of the scheduler with the fewest."""


def until(world: World, counts: Sequence[int] = COUNTS, samples: int = SAMPLES) -> Until:
    """`counts`: the numbers of seeds of the rounds."""
    rng = np.random.default_rng(SEED)
    ratios = np.array(world.capacities[1:]) / world.capacities[0]
    held = np.zeros(len(ratios))
    wrong = left = seeds = 0
    for _ in range(samples):
        drawn = world.draw(rng)
        for count in counts:
            found = found_with(named(drawn[:, :count]))
            if is_open := bool(undecided(found)):
                continue
            wrong += is_wrong(found, world.capacities)
            break
        left += is_open
        seeds += count
        base, *others = [dict(enumerate(own[:count].tolist())) for own in drawn]
        for k, other in enumerate(others):
            found_ratio = capacity_ratio(other, base)
            held[k] += found_ratio is not None and found_ratio.low <= ratios[k] <= found_ratio.high
    return Until(wrong / samples, left / samples, seeds / samples, float(held.min()) / samples)


def is_wrong(found: Sequence[VariantCapacity], truth: Sequence[float]) -> bool:
    """Return whether a decision is wrong; `found` are named by number."""
    best, *equal = [int(each.variant) for each in winners(found)]
    lower = set(range(len(truth))) - {best, *equal}
    return any(truth[k] >= truth[best] for k in lower) or any(
        truth[k] < (1 - EQUAL_WITHIN) * truth[best] for k in equal
    )


def named(drawn: Floats) -> dict[str, list[float]]:
    return {str(k): own.tolist() for k, own in enumerate(drawn)}


def found_with(jobs_per_s: Mapping[str, Sequence[float]]) -> list[VariantCapacity]:
    """Return the capacities of schedulers from their values by seed."""
    return [
        VariantCapacity(
            name,
            "",
            {seed: Capacity(Kind.FOUND, each, each, None) for seed, each in enumerate(of_seeds, 1)},
            None,
        )
        for name, of_seeds in jobs_per_s.items()
    ]


def tables() -> Iterator[str]:
    """Yield the lines of the tables of simulated schedulers."""
    yield "| schedulers | " + " | ".join(f"{count} seeds" for count in COUNTS) + " |"
    yield f"|{'---|' * (len(COUNTS) + 1)}"
    for world in FIXED:
        sets = [fixed(world, count) for count in COUNTS]
        cells = [f"{s.missed:.1%} / {s.any_missed:.1%} / {s.size:.1f}" for s in sets]
        yield f"| {world.about} | {' | '.join(cells)} |"
    yield ""
    yield from until_table(UNTIL)


def until_table(worlds: Sequence[World]) -> Iterator[str]:
    yield "| schedulers | seeds of the rounds | wrong | undecided | seeds | intervals hold |"
    yield "|---|---|---|---|---|---|"
    for world in worlds:
        for counts in ROUNDS:
            found = until(world, counts)
            yield (
                f"| {world.about} | {', '.join(map(str, counts))} | {found.wrong:.1%} | "
                f"{found.undecided:.1%} | {found.seeds:.1f} | {found.held:.1%} |"
            )


if __name__ == "__main__":
    runs = [world_of(Path(folder)) for folder in sys.argv[1:]]
    for line in until_table(runs) if runs else tables():
        print(line, flush=True)
