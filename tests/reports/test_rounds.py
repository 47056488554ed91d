"""Confidence intervals and the number of seeds needed, checked on random sweeps of known truth.

A JCT is the product of four lognormal factors: the program and the seed's burst, which variants
share, a shock of the variant's queue under that seed, and noise of the job.
"""

import math

import numpy as np
import pytest

from reports.statistics.bootstrap import Estimate, Floats, drawn, estimate, ratio
from reports.statistics.seeds_needed import advice, seeds_needed

PROGRAMS = 60
SIGMAS = {"shock": 0.03, "preference": 0.0, "noise": 0.2}


def sweep(
    rng: np.random.Generator, seeds: int = 5, faster: float = 1.0, **spread: float
) -> tuple[Floats, Floats]:
    """Return the JCTs of the baseline and of a variant that is `faster`, programs × seeds."""
    sigma = SIGMAS | spread
    hard = rng.lognormal(4, 0.5, (PROGRAMS, 1)) * rng.lognormal(0, 0.3, (1, seeds))
    base, own = (
        hard
        * rng.lognormal(0, sigma["shock"], (1, seeds))
        * rng.lognormal(0, sigma["preference"], (PROGRAMS, 1))
        * rng.lognormal(0, sigma["noise"], (PROGRAMS, seeds))
        for _ in range(2)
    )
    return base * faster, own


def share_significantly_different(seed: int, **spread: float) -> float:
    rng = np.random.default_rng(seed)
    return float(np.mean([ratio(*sweep(rng, **spread)).differs_from_one for _ in range(1000)]))


@pytest.mark.parametrize("seeds", [3, 5])
def test_two_identical_variants_are_significantly_different_in_at_most_6_percent_of_sweeps(
    seeds: int,
) -> None:
    assert share_significantly_different(1, seeds=seeds) <= 0.06


def test_variants_that_suit_different_programs_but_are_equal_on_average_rarely_differ() -> None:
    """In this sweep, the choice of programs matters as much as the draw of arrivals."""
    assert share_significantly_different(2, preference=0.1) <= 0.06


def test_intervals_over_programs_alone_would_find_differences_that_do_not_exist() -> None:
    def of_programs(base: Floats, own: Floats) -> Estimate:
        drawn_ratios = drawn(base, None) / drawn(own, None)
        return estimate(base.mean() / own.mean(), drawn_ratios)

    rng = np.random.default_rng(1)
    found = [of_programs(*sweep(rng)).differs_from_one for _ in range(300)]
    assert np.mean(found) > 0.15


@pytest.mark.parametrize(
    ("seeds", "shock", "noise"), [(3, 0.03, 0.05), (5, 0.03, 0.1), (10, 0.05, 0.2)]
)
def test_a_difference_of_5_percent_is_found_with_the_promised_number_of_seeds(
    seeds: int, shock: float, noise: float
) -> None:
    """The first few seeds of a sweep estimate how many are needed; the sweep then has that many."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(200):
        base, own = sweep(rng, 300, faster=1.05, shock=shock, noise=noise)
        promised = seeds_needed(base[:, :seeds], own[:, :seeds])
        if math.isfinite(promised):
            enough = max(seeds, min(300, int(promised)))
            found.append(ratio(base[:, :enough], own[:, :enough]).low > 1.0)
    assert len(found) >= 190
    assert np.mean(found) >= 0.88


def spread_of_seeds(log_ratio: float) -> tuple[Floats, Floats]:
    """Return two equal programs under three seeds, with logs of ratios -r, 0 and r."""
    return np.ones((2, 3)), np.exp([[-log_ratio, 0, log_ratio]] * 2)


def test_the_number_of_seeds_needed_follows_steins_method() -> None:
    # Two degrees of freedom: t of 97.5% is 4.3027, of 90% 1.8856. The variance is 0.05²:
    # (6.1883 · 0.05 / ln 1.05)² = 40.2.
    assert seeds_needed(*spread_of_seeds(0.05)) == 41
    # Half the spread takes a quarter: 10.05.
    assert seeds_needed(*spread_of_seeds(0.025)) == 11


def test_from_two_seeds_the_number_needed_cannot_be_estimated() -> None:
    base, own = spread_of_seeds(0.05)
    assert math.isnan(seeds_needed(base[:, :2], own[:, :2]))
    assert advice(2, math.nan) == []


def test_where_programs_disagree_no_number_of_seeds_is_enough() -> None:
    own = np.array([[0.5] * 3, [1.5] * 3])
    assert seeds_needed(np.ones((2, 3)), own) == math.inf
    assert "needs more programs" in advice(3, math.inf)[0]


def test_advice_names_the_number_of_seeds() -> None:
    assert advice(3, 41) == ["Finding a difference of 5% needs about 41 seeds (--seeds)."]
    assert advice(41, 41) == ["A difference of 5% would probably have been found."]
