"""Intervals and rounds needed against known answers: a thousand sweeps whose truth is drawn first.

A JCT is program × burst of the seed (both sides share these) × shock of the variant's queue in that
seed × noise of the job; all lognormal.
"""

import math

import numpy as np
import pytest

from reports.statistics.bootstrap import Estimate, Floats, drawn, estimate, ratio
from reports.statistics.seeds_needed import advice, seeds_needed

PROGRAMS = 60
SIGMAS = {"shock": 0.03, "taste": 0.0, "noise": 0.2}


def sweep(
    rng: np.random.Generator, seeds: int = 5, faster: float = 1.0, **spread: float
) -> tuple[Floats, Floats]:
    """JCTs of the baseline and of a variant that is so many times faster, programs × seeds."""
    sigma = SIGMAS | spread
    hard = rng.lognormal(4, 0.5, (PROGRAMS, 1)) * rng.lognormal(0, 0.3, (1, seeds))
    base, own = (
        hard
        * rng.lognormal(0, sigma["shock"], (1, seeds))
        * rng.lognormal(0, sigma["taste"], (PROGRAMS, 1))
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


def test_nor_are_two_that_suit_different_programs_and_are_equal_on_the_whole() -> None:
    """Here the choice of programs matters as much as the draw of arrivals."""
    assert share_significantly_different(2, taste=0.1) <= 0.06


def test_programs_alone_would_see_differences_where_there_are_none() -> None:
    def of_programs(base: Floats, own: Floats) -> Estimate:
        drawn_ratios = drawn(base, None) / drawn(own, None)
        return estimate(base.mean() / own.mean(), drawn_ratios)

    rng = np.random.default_rng(1)
    found = [of_programs(*sweep(rng)).differs_from_one for _ in range(300)]
    assert np.mean(found) > 0.15


@pytest.mark.parametrize(
    ("seeds", "shock", "noise"), [(3, 0.03, 0.05), (5, 0.03, 0.1), (10, 0.05, 0.2)]
)
def test_a_difference_of_5_percent_is_found_with_the_promised_rounds(
    seeds: int, shock: float, noise: float
) -> None:
    """The first few seeds of a sweep promise how many it takes in all; the same sweep then has so
    many."""
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
    """Two programs that agree, three seeds: the logs of their ratios are -r, 0 and r."""
    return np.ones((2, 3)), np.exp([[-log_ratio, 0, log_ratio]] * 2)


def test_rounds_are_worked_out_as_stein_did() -> None:
    # Two degrees of freedom: t of 97.5% is 4.3027, of 90% 1.8856. The variance is 0.05²:
    # (6.1883 · 0.05 / ln 1.05)² = 40.2.
    assert seeds_needed(*spread_of_seeds(0.05)) == 41
    # Half the spread takes a quarter: 10.05.
    assert seeds_needed(*spread_of_seeds(0.025)) == 11


def test_two_seeds_do_not_tell_how_many_are_needed() -> None:
    base, own = spread_of_seeds(0.05)
    assert math.isnan(seeds_needed(base[:, :2], own[:, :2]))
    assert advice(2, math.nan) == []


def test_where_programs_disagree_no_number_of_seeds_is_enough() -> None:
    own = np.array([[0.5] * 3, [1.5] * 3])
    assert seeds_needed(np.ones((2, 3)), own) == math.inf
    assert "needs more programs" in advice(3, math.inf)[0]


def test_advice_is_in_words() -> None:
    assert advice(3, 41) == ["Finding a difference of 5% needs about 41 seeds (--seeds)."]
    assert advice(41, 41) == ["A difference of 5% would probably have been found."]
