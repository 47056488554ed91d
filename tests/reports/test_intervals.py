import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.statistics.bootstrap import (
    DRAWS,
    MAX_CHUNK_VALUES,
    Estimate,
    drawn,
    draws,
    of,
    widened,
)

JCTS = st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(0, 999)).map(
    lambda shape: np.random.default_rng(shape[2]).lognormal(3, 1, shape[:2]).round(1)
)


@given(jct_s=JCTS, percentile=st.sampled_from([None, 0, 50, 90, 95, 99, 100]))
def test_a_draw_is_the_metric_of_the_jobs_drawn(
    jct_s: np.ndarray, percentile: float | None
) -> None:
    (counts,), found = draws(len(jct_s)), drawn(jct_s, percentile)
    for draw in (0, 7, 1999):
        jobs = np.repeat(jct_s, counts[draw], axis=0)
        assert jobs.size == jct_s.size
        assert found[draw] == pytest.approx(of(jobs, percentile))


def test_draws_of_more_than_a_thousand_programs_are_those_of_one_generator() -> None:
    (counts,) = draws(1500)
    chosen = np.random.default_rng(0).integers(0, 1500, size=(DRAWS, 1500))
    for draw in (0, 1, 1332, 1333, 1999):  # 1,333 draws of 1,500 programs are a piece
        assert (counts[draw] == np.bincount(chosen[draw], minlength=1500)).all()


def test_draws_of_many_programs_are_never_all_in_memory() -> None:
    sizes = []
    for counts in draws(10_001):
        assert (counts.sum(axis=1) == 10_001).all()
        assert counts.size <= MAX_CHUNK_VALUES
        sizes.append(len(counts))
    assert sum(sizes) == DRAWS


def test_two_seeds_do_not_widen_an_interval() -> None:
    spread = Estimate(1.2, 1.1, 1.3)
    assert widened(spread, np.array([1.0, 1.4])) == spread


def test_the_spread_of_seeds_adds_to_that_of_programs_as_independent_errors_do() -> None:
    # Logs -0.1, 0, 0.1 have a deviation of 0.1; times t = 4.3027 (two degrees of freedom), over √3:
    # 0.2484. Together with 0.3 of the programs: √(0.3² + 0.2484²) = 0.3895.
    seeds = np.exp([-0.1, 0.0, 0.1])
    found = widened(Estimate(1.0, np.exp(-0.3), np.exp(0.3)), seeds)
    assert np.log([found.low, found.high]) == pytest.approx([-0.3895, 0.3895], abs=1e-4)
