import numpy as np
import pandas as pd
import pytest

from reports.statistics.points import Comparison, compare, mean_jct


def jobs(*jct_s: float, seed: int = 1, first: int = 0) -> pd.DataFrame:
    ids = [f"p{k:03d}" for k in range(first, first + len(jct_s))]
    return pd.DataFrame({"job_id": ids, "seed": seed, "jct_s": jct_s})


def paired(a: pd.DataFrame, b: pd.DataFrame) -> Comparison:
    comparison = compare(a, b)
    assert comparison is not None
    return comparison


def test_jobs_that_take_half_as_long_are_a_speedup_of_two() -> None:
    result = paired(jobs(10, 20, 30), jobs(5, 10, 15))
    # Each program's ratio is 2, so every draw's is, and the interval has zero width.
    assert result.mean.value == result.mean.low == result.mean.high == pytest.approx(2.0)
    assert result.p95.value == pytest.approx(2.0)


def test_the_ratio_is_of_means_not_the_mean_of_ratios() -> None:
    # Ratios 2 and 1; means 60 and 55.
    assert paired(jobs(20, 100), jobs(10, 100)).mean.value == pytest.approx(120 / 110)


def test_p95_is_linear_between_ranks() -> None:
    # P95 of 0, 10, …, 100 is at rank 9.5: 95. Of eleven 19s it is 19.
    base, variant = jobs(*range(0, 101, 10)), jobs(*[19.0] * 11)
    assert paired(base, variant).p95.value == pytest.approx(5.0)


def test_programs_that_one_of_the_variants_did_not_finish_are_left_out() -> None:
    result = paired(jobs(10, 20, 1000), jobs(5, 10))
    assert result.mean.value == pytest.approx(2.0)
    assert compare(jobs(1, 2), jobs(1, 2, first=7)) is None


def test_all_seeds_of_a_program_count_as_one_draw() -> None:
    base = pd.concat([jobs(10, 20), jobs(30, 40, seed=2)])
    variant = pd.concat([jobs(5, 10), jobs(15, 20, seed=2)])
    result = paired(base, variant)
    assert result.mean.value == pytest.approx(2.0)


def test_pairing_finds_a_small_shift_despite_a_large_spread_between_programs() -> None:
    rng = np.random.default_rng(0)
    hard = rng.lognormal(4, 1, size=100)
    noise = rng.normal(1, 0.02, size=100)
    result = paired(jobs(*(hard * 1.05)), jobs(*(hard * noise)))
    assert result.mean.low > 1.0
    assert result.mean.low < 1.05 < result.mean.high


def test_two_equal_variants_are_significantly_different_in_about_one_of_twenty_trials() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        hard = rng.lognormal(4, 0.5, size=60)
        a, b = (hard * rng.lognormal(0, 0.2, size=60) for _ in range(2))
        found += paired(jobs(*a), jobs(*b)).mean.differs_from_one
    assert found <= 20


def test_the_same_jobs_give_the_same_interval() -> None:
    some = jobs(3, 1, 4, 1, 5, 9, 2, 6)
    assert mean_jct(some) == mean_jct(some.copy())
    assert mean_jct(some).low < 31 / 8 < mean_jct(some).high
