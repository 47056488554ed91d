"""Decides which capacities the seeds of a run separate from the highest one.

In: the capacities of variants by seed. Out: variants that are neither separated from the highest
capacity nor equal to it, and how many seeds would probably decide. The intervals are corrected for
the number of comparisons and of looks at the results (docs/design/statistics.md, "Until").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from reports.statistics.bootstrap import CONFIDENCE, MIN_SEEDS, Estimate
from reports.statistics.capacities import (
    EQUAL_WITHIN,
    RATIO_PRIOR,
    VariantCapacity,
    always_sustaining,
    capacity_ratio,
    ranked_contenders,
    winners,
)
from reports.statistics.over_seeds import half_width_with
from reports.statistics.seeds_needed import MAX_SEEDS
from servers.basics.phrasing import listed

LOOKS = 5
"""The results are looked at this often at most: with 2, 4, 8, 16 and 24 seeds, or with 3 to 24."""


class Undecided(NamedTuple):
    variant: str
    best: str
    """The variant with the highest capacity."""
    seeds: int | None
    """The number of seeds that would probably separate the two, or show that they are equal; None
    if `MAX_SEEDS` probably do not."""


def undecided(found: Sequence[VariantCapacity]) -> list[Undecided]:
    """Return the contenders that are not decided, the highest first; none if a variant sustains
    every rate, which makes it the best."""
    contenders = ranked_contenders(found)
    if not contenders or always_sustaining(found):
        return []
    best, *others = contenders
    confidence = confidence_of(len(contenders))
    left = [(each, _ratio(each, best, confidence)) for each in others]
    return [
        Undecided(each.variant, best.variant, _seeds(ratio, len(best.by_seed), confidence))
        for each, ratio in left
        if not _is_decided(ratio)
    ]


def confidence_of(contenders: int) -> float:
    """Return the confidence of each interval with which those of all pairs, at every look, hold
    with `CONFIDENCE` (Bonferroni). All pairs count, since the results decide which is the best."""
    pairs = contenders * (contenders - 1) // 2
    return 1 - (1 - CONFIDENCE) / (max(1, pairs) * LOOKS)


def _ratio(each: VariantCapacity, best: VariantCapacity, confidence: float) -> Estimate:
    ratio = capacity_ratio(each.loads, best.loads, confidence)
    return ratio or Estimate(math.nan, math.nan, math.nan)


def is_separated(each: VariantCapacity, best: VariantCapacity, contenders: int) -> bool:
    """Return whether a capacity is lower than the highest of so many."""
    return _ratio(each, best, confidence_of(contenders)).high < 1


def _is_decided(ratio: Estimate) -> bool:
    return ratio.high < 1 or ratio.low >= 1 - EQUAL_WITHIN


def _seeds(ratio: Estimate, count: int, confidence: float) -> int | None:
    """Return the least number of seeds whose interval would decide if the ratio and the deviation
    between seeds stayed as they are."""
    if not ratio.has_interval:
        return None
    half = math.log(ratio.high / ratio.value)
    for more in range(count + 1, MAX_SEEDS + 1):
        width = math.exp(half_width_with(more, half, count, confidence, RATIO_PRIOR))
        if _is_decided(Estimate(ratio.value, ratio.value / width, ratio.value * width)):
            return more
    return None


def separation_advice(found: Sequence[VariantCapacity]) -> list[str]:
    """Return sentences on how many seeds would decide which of the winners is the best; none if
    that is decided, or if too little is known."""
    best = {each.variant for each in winners(found)}
    left = [each for each in undecided(found) if each.variant in best]
    seeds = max((len(each.by_seed) for each in found), default=0)
    if not MIN_SEEDS <= seeds < MAX_SEEDS:
        return []
    sentences = []
    if soon := [each for each in left if each.seeds is not None]:
        needed = max(each.seeds or 0 for each in soon)
        sentences.append(
            f"About {needed} seeds instead of {seeds} would separate {_pair(soon)}, or show that "
            f"they are equal within {EQUAL_WITHIN:.0%}: add --until separated."
        )
    if late := [each for each in left if each.seeds is None]:
        sentences.append(f"{MAX_SEEDS} seeds would probably not separate {_pair(late)}.")
    return sentences


def _pair(left: Sequence[Undecided]) -> str:
    return f"{left[0].best} from {listed([each.variant for each in left], at_most=3)}"
