"""Confidence intervals, checked on random sweeps of known truth.

A JCT is the product of four lognormal factors: the program and the seed's burst, which variants
share, a shock of the variant's queue under that seed, and noise of the job.
"""

import numpy as np
import pytest

from reports.statistics.bootstrap import Estimate, Floats, drawn, estimate, ratio

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
