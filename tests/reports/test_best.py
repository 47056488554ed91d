"""Which capacities may be the highest, and how many seeds would decide."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.capacity.estimate import Capacity, Kind
from reports.statistics.best import (
    LOOKS,
    Undecided,
    half_widths,
    separation_advice,
    undecided,
    winners,
)
from reports.statistics.capacities import EQUAL_WITHIN, VariantCapacity
from tests.reports.simulated_capacities import World, even, fixed, uneven, until
from tests.reports.simulated_capacities import found_with as found
from tests.sentences import mentions

EVEN = (1.0, 1.0, 1.0)


def scaled(ratio: float, seeds: int) -> list[float]:
    return [ratio] * seeds


def names(capacities: dict[str, list[float]]) -> list[str]:
    return [each.variant for each in winners(found(capacities))]


def test_capacities_far_below_the_highest_are_separated_from_it() -> None:
    assert names({"other": scaled(0.5, 3), "best": scaled(1.0, 3)}) == ["best"]
    assert undecided(found({"best": EVEN, "other": scaled(0.5, 3)})) == []


def test_capacities_are_equal_if_the_whole_interval_is_within_3_percent() -> None:
    """With the prior, 24 seeds that do not deviate have s² = 2 · 0.1² ÷ 25, so s = 0.028. One
    comparison at five looks has a confidence of 99% and t(25) = 2.79, so half the width is 1.6%:
    0.99 is equal, 0.969 is lower, and 0.985 may be 1 or less than 0.97."""
    best = scaled(1.0, 24)
    assert undecided(found({"best": best, "other": scaled(0.99, 24)})) == []
    assert undecided(found({"best": best, "other": scaled(0.985, 24)})) == [
        Undecided("other", "best", None)
    ]
    lower = {"best": best, "other": scaled(0.969, 24)}
    assert undecided(found(lower)) == []
    assert names(lower) == ["best"]


def test_the_variance_is_pooled_over_all_that_are_left() -> None:
    """Effects of seeds and variants do not count. What is left of the logarithms is ±0.05, six
    times. With two degrees of freedom of the prior there are 6: s² = (2 · 6 · 0.05² + 2 · 0.1²) ÷ 6
    = 0.00833. Three pairs at five looks have a confidence of 1 − 0.05 ÷ 15: t(6) = 4.70."""
    logs = np.array([[0.05, -0.05, 0.0], [0.0, 0.05, -0.05], [-0.05, 0.0, 0.05]])
    moved = logs + np.array([0.1, 0.4, 0.2]) + np.array([[1.0], [2.0], [3.0]])
    expected = 4.698 * math.sqrt(0.05 / 6) / math.sqrt(3)
    assert half_widths(moved, [3]) == pytest.approx([expected], rel=1e-3)
    assert LOOKS == 5


def test_the_lowest_are_left_out_first_and_the_others_have_fewer_pairs_then() -> None:
    """With 8 seeds that do not deviate, two have half a width of t(9) = 3.25 times
    √(0.02 ÷ 9 ÷ 8) = 5.4%, and 0.94 is 6.2% below 1."""
    pair = {"best": scaled(1.0, 8), "other": scaled(0.94, 8)}
    assert names(pair) == ["best"]
    assert names(pair | {f"far-{k}": scaled(0.3, 8) for k in range(20)}) == ["best"]


def test_a_low_scheduler_that_deviates_widens_no_interval_once_it_is_left_out() -> None:
    rng = np.random.default_rng(1)
    wild = (0.1 * np.exp(rng.normal(0, 0.5, 8))).tolist()
    assert names({"best": scaled(1.0, 8), "other": scaled(0.94, 8), "wild": wild}) == ["best"]


capacity = st.floats(0.5, 1.0)


@given(st.data(), st.integers(1, 12), st.integers(1, 6))
def test_no_scheduler_is_among_the_best_if_a_higher_one_is_not(
    data: st.DataObject, seeds: int, schedulers: int
) -> None:
    drawn = {
        str(k): data.draw(st.lists(capacity, min_size=seeds, max_size=seeds))
        for k in range(schedulers)
    }
    capacities = found(drawn)
    best = {each.variant for each in winners(capacities)}
    value = {each.variant: each.load.value for each in capacities if each.load}
    least = min(value[name] for name in best)
    assert all(value[name] <= least for name in value.keys() - best)
    assert all(value[n] < (1 - EQUAL_WITHIN) * max(value.values()) for n in value.keys() - best)


@given(st.lists(st.lists(capacity, min_size=3, max_size=3), min_size=1, max_size=6))
def test_the_advice_and_until_name_winners_only(drawn: list[list[float]]) -> None:
    capacities = found({str(k): own for k, own in enumerate(drawn)})
    best = [each.variant for each in winners(capacities)]
    assert {each.variant for each in undecided(capacities)} <= set(best[1:])
    assert {each.best for each in undecided(capacities)} <= {best[0]}


def test_references_and_variants_without_a_capacity_are_no_contenders() -> None:
    never = VariantCapacity("never", "", {1: Capacity(Kind.NEVER, math.nan, None, 0.1)}, None)
    ahead, best = found({"reference": scaled(1.01, 3), "best": EVEN})
    assert undecided([replace(ahead, reference="the future"), best, never]) == []
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
    always = VariantCapacity("always", "", {1: Capacity(Kind.ALWAYS, math.nan, 9.0, None)}, None)
    assert undecided([*found({"one": EVEN, "two": scaled(0.9, 3)}), always]) == []


def test_the_advice_names_the_option_that_goes_on() -> None:
    (advice,) = separation_advice(found({"best": EVEN, "other": scaled(0.9, 3)}))
    assert mentions(
        advice, "6 seeds", "3", "2.0x the time", "best from other", "3%", "--until separated"
    )
    (timed,) = separation_advice(found({"best": EVEN, "other": scaled(0.9, 3)}), 1.8)
    assert mentions(timed, "6 seeds", "3", "about 2 more minutes", "best from other")
    assert separation_advice(found({"best": EVEN, "other": scaled(0.5, 3)})) == []
    assert separation_advice(found({"best": [1.0], "other": [0.9]})) == []


def test_the_advice_names_pairs_that_24_seeds_would_not_separate() -> None:
    """With 12 seeds, what is left of the logarithms of the two is ±0.05, so the ratio deviates by
    0.1. Half the width with 24 seeds is t(25) = 2.79 times about 0.1 ÷ √24, or 5.7%."""
    noisy = [math.exp((-1) ** k * 0.1) for k in range(12)]
    both = {"best": scaled(1.0, 12), "other": [0.96 * each for each in noisy]}
    (advice,) = separation_advice(found(both))
    assert mentions(advice, "24 seeds", "not separate best from other")
    assert separation_advice(found({"best": scaled(1.0, 24), "other": noisy * 2})) == []


@pytest.mark.parametrize(
    ("contenders", "share", "samples"), [(2, 1.0, 300), (2, 0.95, 300), (10, 1.0, 60)]
)
def test_at_most_5_percent_of_the_runs_decide_wrongly(
    contenders: int, share: float, samples: int
) -> None:
    assert until(even(contenders, share), samples=samples).wrong <= 0.05


@pytest.mark.parametrize("world", [even(5), even(5, two_modes=True), uneven(5)])
def test_the_set_lacks_a_best_scheduler_in_at_most_5_percent_of_the_runs(world: World) -> None:
    assert fixed(world, 3, 200).any_missed <= 0.05
