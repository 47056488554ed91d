"""Decides which variants may have the highest capacity (docs/design/statistics.md, "Winners").

In: the capacities of variants by seed. Out: the variants that may be the best, those of them that
more seeds would separate or show to be equal, and how many seeds that would probably take. The
headline, `--until separated` and the advice on seeds use this one set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reports.capacity.estimate import Kind
from reports.statistics import student
from reports.statistics.bootstrap import CONFIDENCE, MIN_SEEDS, Floats
from reports.statistics.capacities import EQUAL_WITHIN, RATIO_PRIOR, VariantCapacity
from servers.basics.phrasing import counted, listed

MAX_SEEDS = 24
"""The search for narrow intervals ends here: they shrink with the square root of the seeds."""
LOOKS = 5
"""The results are looked at this often at most: with 2, 4, 8, 16 and 24 seeds, or with 3 to 24."""
MARGIN = -math.log(1 - EQUAL_WITHIN)
"""Smaller distances between logarithms of capacities do not matter."""


class Undecided(NamedTuple):
    variant: str
    best: str
    """The variant with the highest capacity."""
    seeds: int | None
    """The number of seeds, doubled again and again, that would probably separate the two, or show
    that they are equal; None if `MAX_SEEDS` probably do not."""


def winners(found: Sequence[VariantCapacity]) -> list[VariantCapacity]:
    """Return the variants that may have the highest capacity, references excluded, the highest
    first.

    The lowest are left out one by one, until one is within `EQUAL_WITHIN` of the highest or not
    significantly lower. So no variant is in the set if a higher one is not. One seed shows nothing,
    so those within `EQUAL_WITHIN` are named.
    """
    if always := always_sustaining(found):
        return always
    best = _best(found)
    if len(best.variants) > 1 and best.logs.shape[1] < 2:
        return best.variants[: int((best.distances <= MARGIN).sum())]
    return best.variants


def always_sustaining(found: Sequence[VariantCapacity]) -> list[VariantCapacity]:
    """Return the variants that sustain every rate that was tried, references excluded."""
    return [each for each in found if not each.reference and each.kind is Kind.ALWAYS]


class _Best(NamedTuple):
    variants: list[VariantCapacity]
    """The highest first."""
    distances: Floats
    """How far each logarithm is below the highest."""
    logs: Floats
    """Logarithms of the capacities, variants × seeds that all have."""


def _best(found: Sequence[VariantCapacity]) -> _Best:
    values = [
        (load.value, each)
        for each in found
        if not each.reference and (load := each.load) is not None
    ]
    values.sort(key=lambda pair: -pair[0])
    variants = [each for _, each in values]
    distances = -np.log([value / values[0][0] for value, _ in values])
    by_seed = [each.loads for each in variants]
    seeds = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    logs = np.log([[own[seed] for seed in seeds] for own in by_seed])
    count = len(variants)
    while count > 1 and MARGIN < distances[count - 1] > half_widths(logs[:count], [len(seeds)])[0]:
        count -= 1
    return _Best(variants[:count], distances[:count], logs[:count])


def half_widths(logs: Floats, counts: Iterable[int]) -> list[float]:
    """Return half the width of the interval of the distance between any two rows of `logs`,
    variants × seeds, with each number of seeds if they deviated as much; NaN with one seed.

    The variance is pooled over the variants, after the effects of variants and seeds, with the
    prior of ratios. All pairs and looks hold together with `CONFIDENCE` (Bonferroni): the results
    decide which pairs matter.
    """
    variants, seeds = logs.shape
    if seeds < 2:
        return [math.nan for _ in counts]
    effects = logs.mean(axis=1, keepdims=True) + logs.mean(axis=0) - logs.mean()
    squares = 2 * float(((logs - effects) ** 2).sum())
    prior = RATIO_PRIOR.weight
    degrees = (variants - 1) * (seeds - 1) + prior
    variance = (squares + prior * RATIO_PRIOR.deviation**2) / degrees
    within = 1 - (1 - CONFIDENCE) / (variants * (variants - 1) * LOOKS)
    return [
        student.quantile((variants - 1) * (count - 1) + prior, within) * math.sqrt(variance / count)
        for count in counts
    ]


def undecided(found: Sequence[VariantCapacity]) -> list[Undecided]:
    """Return the winners that are not equal to the highest within `EQUAL_WITHIN`, the highest
    first; with one seed all variants but the highest. None if a variant sustains every rate, which
    makes it the best."""
    best = _best(found)
    if len(best.variants) < 2 or always_sustaining(found):
        return []
    first, seeds = best.variants[0], best.logs.shape[1]
    counts = [seeds]
    while counts[-1] < MAX_SEEDS:
        counts.append(min(MAX_SEEDS, 2 * counts[-1]))
    halves = dict(zip(counts, half_widths(best.logs, counts), strict=True))
    return [
        Undecided(each.variant, first.variant, _seeds(distance, halves))
        for each, distance in zip(best.variants, best.distances.tolist(), strict=True)
        if each is not first and not distance + halves[seeds] <= MARGIN
    ]


def _seeds(distance: float, halves: Mapping[int, float]) -> int | None:
    """Return the least number of seeds that would decide if the distance stayed as it is. `halves`:
    half the width of the interval by number of seeds, from the run's on."""
    for seeds, half in halves.items():
        if MARGIN < distance > half or distance + half <= MARGIN:
            return seeds
    return None


def separation_advice(found: Sequence[VariantCapacity], minutes: float | None = None) -> list[str]:
    """Return sentences on how many seeds would decide which of the winners is the best; none if
    that is decided, or if too little is known. The present ones take `minutes` on four fast cores,
    if that is known."""
    left = undecided(found)
    seeds = max((len(each.by_seed) for each in found), default=0)
    if not MIN_SEEDS <= seeds < MAX_SEEDS:
        return []
    sentences = []
    if soon := [each for each in left if each.seeds is not None]:
        needed = max(each.seeds or 0 for each in soon)
        more = 0 if minutes is None else max(1, round(minutes * (needed / seeds - 1)))
        time = (
            f"about {counted(more, 'more minute')} on four fast cores"
            if more
            else f"{needed / seeds:.1f}x the time"
        )
        sentences.append(
            f"About {needed} seeds instead of {seeds}, in {time}, would "
            f"separate {_pair(soon)}, or show that they are equal within {EQUAL_WITHIN:.0%}: add "
            "--until separated."
        )
    if late := [each for each in left if each.seeds is None]:
        sentences.append(f"{MAX_SEEDS} seeds would probably not separate {_pair(late)}.")
    return sentences


def _pair(left: Sequence[Undecided]) -> str:
    return f"{left[0].best} from {listed([each.variant for each in left], at_most=3)}"


def seeds_for(count: int, width: float, share: float) -> int:
    """Return the number of seeds for the next round of `--until`, after `count` seeds whose widest
    interval has a half width of `width`: as many as the width suggests, but at most twice `count`,
    since the width from few seeds is uncertain."""
    needed = count * min((width / share) ** 2, 2)
    return min(MAX_SEEDS, max(count + 1, math.ceil(needed)))
