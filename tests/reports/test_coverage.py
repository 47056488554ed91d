"""How often intervals over few seeds hold the truth, measured by resampling many seeds."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from reports.capacity.estimate import Capacity, Kind
from reports.capacity.search import Chain
from reports.statistics.capacities import capacities
from tests.reports.test_capacity_answer import number
from tools.coverage import capacities_by_seed, coverage, jcts_by_seed


def test_only_triples_of_equal_values_miss_a_truth_in_the_middle() -> None:
    """Half of 60 values are 1, half are e. Of the 34,220 triples, 2 · 4,060 are of one kind: their
    interval has no width. The logarithms of the others have a mean of ±1/6 around the truth and a
    half width of 4.30 · 0.577 / √3 = 1.43."""
    found = coverage(np.repeat([1.0, math.e], 30), 4000)
    assert found.held == pytest.approx(1 - 2 * 4060 / 34220, abs=0.02)
    assert found.seeds == 3


def test_triples_of_normal_logarithms_hold_the_truth_in_95_percent() -> None:
    values = np.random.default_rng(2).lognormal(0, 0.25, 120)
    assert coverage(values, 4000).held == pytest.approx(0.95, abs=0.015)


def test_intervals_miss_on_the_side_of_the_many_if_few_seeds_are_far_off() -> None:
    """One seed in ten is e times lower. 24,804 of the 34,220 triples, 72.5%, have none of these:
    their values are equal and above the truth."""
    found = coverage(np.repeat([1.0, 1 / math.e], [54, 6]), 4000)
    assert found.above == pytest.approx(0.725, abs=0.02)
    assert found.held == pytest.approx(1 - found.above, abs=0.002)


def test_samples_of_half_of_all_seeds_are_no_nearer_to_the_truth_than_others() -> None:
    """24 of 48 seeds deviate from the mean of all by √½ of what they deviate from the truth, so
    that 99.5% of the intervals would seem to hold it."""
    values = np.random.default_rng(2).lognormal(0, 0.25, 48)
    found = coverage(values, 4000, share=1e-9)
    assert (found.seeds, found.wide) == (24, 1)
    assert found.held == pytest.approx(0.95, abs=0.015)


def test_intervals_that_end_because_they_are_narrow_hold_the_truth_less_often() -> None:
    values = np.random.default_rng(2).lognormal(0, 0.1, 120)
    until = coverage(values, 2000, share=0.1)
    assert 3 < until.seeds < 24
    assert 0.85 < until.held < coverage(values, 2000).held - 0.01


def test_ratios_of_capacities_are_paired_by_seed() -> None:
    never = Capacity(Kind.NEVER, math.nan, None, 0.1)
    chains = {
        Chain("fcfs", 1): number(0.2), Chain("fcfs", 2): number(0.4), Chain("fcfs", 3): never,
        Chain("a", 1): number(0.3), Chain("a", 2): number(0.6), Chain("a", 3): number(0.5),
    }  # fmt: skip
    found = capacities_by_seed(capacities(chains, {"fcfs": "", "a": ""}, "fcfs"), "fcfs")
    assert found["capacity of fcfs"] == {1: 0.2, 2: 0.4}
    assert found["capacity of a"] == {1: 0.3, 2: 0.6, 3: 0.5}
    assert found["capacity of a ÷ fcfs"] == pytest.approx({1: 1.5, 2: 1.5})


def test_jcts_are_of_the_seeds_with_which_the_baseline_sustains_the_rate() -> None:
    """With seed 3, fcfs sustains 0.15 jobs/s only."""
    rows = [
        *((0.1, "fcfs", seed, f"job{seed}", 10.0 * seed) for seed in (1, 2, 3)),
        *((0.1, "a", seed, f"job{seed}", 5.0 * seed) for seed in (1, 2, 3)),
        *((0.2, "fcfs", seed, f"job{seed}", 20.0) for seed in (1, 2, 3)),
        *((0.2, "a", seed, f"job{seed}", 10.0) for seed in (1, 2, 3)),
    ]
    jobs = pd.DataFrame(rows, columns=["jps", "variant", "seed", "job_id", "jct_s"])
    assert dict(jcts_by_seed(jobs, "fcfs", {1: 0.25, 2: 0.2, 3: 0.15})) == {
        "mean JCT of fcfs at 0.1 jobs/s": {1: 10.0, 2: 20.0, 3: 30.0},
        "mean JCT of a at 0.1 jobs/s": {1: 5.0, 2: 10.0, 3: 15.0},
        "mean JCT of fcfs ÷ a at 0.1 jobs/s": {1: 2.0, 2: 2.0, 3: 2.0},
        "mean JCT of fcfs at 0.2 jobs/s": {1: 20.0, 2: 20.0},
        "mean JCT of a at 0.2 jobs/s": {1: 10.0, 2: 10.0},
        "mean JCT of fcfs ÷ a at 0.2 jobs/s": {1: 2.0, 2: 2.0},
    }
