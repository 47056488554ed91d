"""Which capacities are separated from the highest one, and how many seeds would decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from reports.capacity.estimate import Capacity, Kind
from reports.statistics.capacities import VariantCapacity
from reports.statistics.separation import (
    LOOKS,
    Undecided,
    confidence_of,
    separation_advice,
    undecided,
)

EVEN = (1.0, 1.0, 1.0)


def found(capacities: Mapping[str, Sequence[float]]) -> list[VariantCapacity]:
    return [
        VariantCapacity(
            name,
            name.endswith("bound"),
            {
                seed: Capacity(Kind.FOUND, jobs_per_s, jobs_per_s, None)
                for seed, jobs_per_s in enumerate(values, 1)
            },
            None,
        )
        for name, values in capacities.items()
    ]


def scaled(ratio: float, seeds: int) -> list[float]:
    return [ratio] * seeds


def test_capacities_far_below_the_highest_are_separated_from_it() -> None:
    assert undecided(found({"best": EVEN, "other": scaled(0.5, 3)})) == []


def test_capacities_are_equal_if_the_whole_interval_is_within_3_percent() -> None:
    """With the prior, 24 seeds that do not deviate have s² = 2 · 0.1² ÷ 25, so s = 0.028. One
    comparison at five looks has a confidence of 99% and t(25) = 2.79, so half the width is 1.6%:
    0.99 is equal, 0.97 is lower, and 0.985 may be 1 or less than 0.97."""
    best = scaled(1.0, 24)
    assert undecided(found({"best": best, "other": scaled(0.99, 24)})) == []
    assert undecided(found({"best": best, "other": scaled(0.985, 24)})) == [
        Undecided("other", "best", None)
    ]
    assert undecided(found({"best": best, "other": scaled(0.97, 24)})) == []


def test_more_comparisons_need_wider_intervals() -> None:
    assert confidence_of(1) == pytest.approx(1 - 0.05 / LOOKS)
    assert confidence_of(10) == pytest.approx(1 - 0.005 / LOOKS)
    seeds = 8
    pair = {"best": scaled(1.0, seeds), "other": scaled(0.935, seeds)}
    many = pair | {f"far-{k}": scaled(0.3, seeds) for k in range(20)}
    assert undecided(found(pair)) == []
    assert [each.variant for each in undecided(found(many))] == ["other"]


def test_bounds_and_variants_without_a_capacity_are_no_contenders() -> None:
    never = VariantCapacity("never", False, {1: Capacity(Kind.NEVER, math.nan, None, 0.1)}, None)
    ahead = {"bound": scaled(1.01, 3), "best": EVEN}
    assert undecided([*found(ahead), never]) == []
    assert undecided([]) == []


def test_the_seeds_are_those_whose_interval_would_decide() -> None:
    """One comparison of 3 seeds that do not deviate has t(4) = 4.60 and s² = 2 · 0.1² ÷ 4, so half
    the width is 18.8%. With n seeds it shrinks to t(n + 1) ÷ 4.60 · √(3 ÷ n) of that, which first
    is below the distance of 10.5% with 6 seeds: t(7) = 3.50, and 18.8% · 0.76 · 0.71 = 10.1%."""
    (left,) = undecided(found({"best": EVEN, "other": scaled(0.9, 3)}))
    assert left == Undecided("other", "best", 6)


def test_one_seed_suggests_no_number() -> None:
    (left,) = undecided(found({"best": [1.0], "other": [0.9]}))
    assert left.seeds is None


def test_the_advice_names_the_option_that_goes_on() -> None:
    both = {"best": EVEN, "other": scaled(0.9, 3)}
    assert separation_advice(found(both)) == (
        "About 6 seeds instead of 3 would separate best from other, or show that they are equal "
        "within 3%: add --until separated."
    )
    assert separation_advice(found({"best": EVEN, "other": scaled(0.5, 3)})) == ""
    assert separation_advice(found({"best": [1.0], "other": [0.9]})) == ""


def test_the_advice_says_when_24_seeds_would_not_separate() -> None:
    seeds = 12
    noisy = [0.975 * math.exp((-1) ** k * 0.3) for k in range(seeds)]
    advice = separation_advice(found({"best": scaled(1.0, seeds), "other": noisy}))
    assert advice == "24 seeds would probably not separate best from other."


@pytest.mark.parametrize("truth", [1.0, 0.98, 0.95])
def test_at_most_5_percent_of_the_decisions_over_all_rounds_are_wrong(truth: float) -> None:
    """Logarithms deviate by 0.1, as those of most pairs of policies do."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(300):
        ratios = truth * np.exp(rng.normal(0, 0.1, 24))
        for count in (3, 6, 12, 24):
            of_seeds = ratios[:count].tolist()
            if not undecided(found({"one": scaled(1.0, count), "two": of_seeds})):
                mean = math.exp(float(np.log(of_seeds).mean()))
                wrong += _is_wrong(mean, truth)
                break
    assert wrong <= 15


def _is_wrong(mean: float, truth: float) -> bool:
    if min(mean, 1 / mean) >= 0.97:  # found to be equal
        return truth < 0.97
    return mean > 1 or truth == 1
