"""Intervals over seeds: the formula, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reports.statistics.bootstrap import interval
from reports.statistics.over_seeds import geometric_mean, low_tail, mean_of_positive, paired_ratio


def test_the_interval_is_students_of_the_logarithms() -> None:
    # Logs -0.1, 0, 0.1: deviation 0.1, times t = 4.3027 (two degrees of freedom), over √3: 0.2484.
    found = geometric_mean(np.exp([-0.1, 0.0, 0.1]))
    assert found.value == pytest.approx(1)
    assert np.log([found.low, found.high]) == pytest.approx([-0.2484, 0.2484], abs=1e-4)


def test_the_interval_of_an_arithmetic_mean_is_that_of_its_logarithm() -> None:
    # Mean 2, deviation 1, so the relative error is 1 ÷ (2 √3) = 0.2887, times t = 4.3027: 1.2421.
    found = mean_of_positive([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert np.log([found.low / 2, found.high / 2]) == pytest.approx([-1.2421, 1.2421], abs=1e-4)
    assert not mean_of_positive([1.7]).has_interval


def test_one_seed_has_no_interval_and_says_so() -> None:
    found = geometric_mean([1.7])
    assert found.value == pytest.approx(1.7)
    assert math.isnan(found.low)
    assert not found.differs_from_one
    assert interval(found) == "too few seeds for an interval"


def test_the_tail_of_a_mean_is_students_and_agrees_with_the_interval() -> None:
    values = np.exp([-0.1, 0.0, 0.1])
    found = geometric_mean(values)
    assert low_tail(values, found.high) == pytest.approx(0.025)
    assert low_tail(values, found.low) == pytest.approx(0.975)
    assert low_tail(values, 1.0) == 0.5
    # Not positive, so without logarithms: the mean is 1 and the error 1/√3; t = -√3 has 0.1127.
    assert low_tail([0.0, 1.0, 2.0], 2.0) == pytest.approx(0.1127, abs=1e-4)
    assert (low_tail([2.0, 2.0], 3.0), low_tail([2.0, 2.0], 1.0)) == (0.0, 1.0)
    assert math.isnan(low_tail([2.0], 1.0))


def test_a_ratio_is_paired_by_seed() -> None:
    """Seed 2 has twice the capacity for both; the ratio is 1.5 in each seed, so it is certain."""
    found = paired_ratio({1: 1.5, 2: 3.0, 3: 1.5}, {1: 1.0, 2: 2.0, 3: 1.0})
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_seeds_of_one_side_only_are_left_out() -> None:
    found = paired_ratio({1: 2.0, 2: 8.0}, {2: 2.0, 3: 1.0})
    assert found is not None
    assert found.value == pytest.approx(4)
    assert paired_ratio({1: 2.0}, {2: 2.0}) is None


@pytest.mark.parametrize("deviation", [0.23, 0.25, 0.27])
def test_of_200_triples_of_seeds_the_interval_holds_the_truth_in_at_least_93_percent(
    deviation: float,
) -> None:
    """The deviation is that of mean JCTs at the knee. The theory gives 95%; with ten times 200
    triples, chance is 0.5%, so that a wrong quantile (1.96 instead of 4.30: 81%) shows."""
    rng = np.random.default_rng(7)
    triples = 1.4 * rng.lognormal(0, deviation, (2000, 3))
    intervals = [geometric_mean(triple) for triple in triples]
    held = np.array([i.low <= 1.4 <= i.high for i in intervals])
    assert held.reshape(10, 200).mean() >= 0.94
    assert held[:200].mean() >= 0.93


def test_jobs_of_a_seed_that_suit_neither_side_do_not_widen_the_interval_of_a_ratio() -> None:
    """Seeds differ by 25%, the sides by 2% within a seed: the interval of the ratio is that of the
    2%, and holds the truth as often."""
    rng = np.random.default_rng(3)
    held, widths = [], []
    for _ in range(400):
        common = rng.lognormal(0, 0.25, 3)
        sides = [dict(enumerate(common * rng.lognormal(0, 0.02, 3))) for _ in range(2)]
        found = paired_ratio(*sides)
        assert found is not None
        held.append(found.low <= 1 <= found.high)
        widths.append(math.log(found.high / found.low) / 2)
    assert np.mean(held) >= 0.93
    # t · √2 · 0.02 / √3 = 0.070, times the mean of the deviation of three values, 0.886.
    assert np.mean(widths) == pytest.approx(0.062, rel=0.1)
