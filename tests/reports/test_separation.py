"""Which capacities are separated from the highest one, and how many seeds would decide."""

from __future__ import annotations

import math
from dataclasses import replace

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
from tools.separation import found_with as found
from tools.separation import outcomes

EVEN = (1.0, 1.0, 1.0)


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


def test_more_contenders_need_wider_intervals() -> None:
    """Two have one pair, and five have ten."""
    assert confidence_of(2) == pytest.approx(1 - 0.05 / LOOKS)
    assert confidence_of(5) == pytest.approx(1 - 0.005 / LOOKS)
    pair = {"best": scaled(1.0, 8), "other": scaled(0.935, 8)}
    many = pair | {f"far-{k}": scaled(0.3, 8) for k in range(20)}
    assert undecided(found(pair)) == []
    assert [each.variant for each in undecided(found(many))] == ["other"]


def test_bounds_and_variants_without_a_capacity_are_no_contenders() -> None:
    never = VariantCapacity("never", False, {1: Capacity(Kind.NEVER, math.nan, None, 0.1)}, None)
    ahead, best = found({"bound": scaled(1.01, 3), "best": EVEN})
    assert undecided([replace(ahead, bound=True), best, never]) == []
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


def test_nothing_is_undecided_if_a_variant_sustains_every_rate() -> None:
    always = VariantCapacity("always", False, {1: Capacity(Kind.ALWAYS, math.nan, 9.0, None)}, None)
    assert undecided([*found({"one": EVEN, "two": scaled(0.9, 3)}), always]) == []


def test_the_advice_names_the_option_that_goes_on() -> None:
    assert separation_advice(found({"best": EVEN, "other": scaled(0.9, 3)})) == [
        "About 6 seeds instead of 3 would separate best from other, or show that they are equal "
        "within 3%: add --until separated."
    ]
    assert separation_advice(found({"best": EVEN, "other": scaled(0.5, 3)})) == []
    assert separation_advice(found({"best": [1.0], "other": [0.9]})) == []


def test_the_advice_names_pairs_that_24_seeds_would_not_separate() -> None:
    """Three pairs have t(13) = 3.58, so half the width is 4.05% with 12 seeds that do not deviate.
    With 20 it shrinks to 2.89% and with 21 to 2.81%, and 0.972 is 2.84% below 1."""
    noisy = [0.975 * math.exp((-1) ** k * 0.3) for k in range(12)]
    both = {"best": scaled(1.0, 12), "other": noisy, "near": scaled(0.972, 12)}
    assert separation_advice(found(both)) == [
        "About 21 seeds instead of 12 would separate best from near, or show that they are equal "
        "within 3%: add --until separated.",
        "24 seeds would probably not separate best from other.",
    ]
    assert separation_advice(found({"best": scaled(1.0, 24), "other": noisy * 2})) == []


@pytest.mark.parametrize(
    ("contenders", "share", "samples"), [(2, 1.0, 300), (2, 0.95, 300), (10, 1.0, 60)]
)
def test_at_most_5_percent_of_the_runs_decide_wrongly(
    contenders: int, share: float, samples: int
) -> None:
    assert outcomes(contenders, share, samples).wrong <= 0.05
