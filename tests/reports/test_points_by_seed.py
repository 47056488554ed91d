"""Points of cells in steady state: pairs within a seed, intervals over seeds, no unstable ratio."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pytest

from reports.metrics.cells import Results
from reports.metrics.fairness import FAIRNESS
from reports.statistics.points import Point, compare, points

Jobs = dict[tuple[str, int], dict[str, float]]
"""JCTs by job, of variants and seeds."""


def results(jobs: Jobs, unstable: Sequence[tuple[str, int]] = ()) -> Results:
    cells = [
        {
            "cell": f"{variant}_{seed}", "variant": variant, "reference": "", "offload": False,
            "jps": 0.5, "load": "0.5 jobs/s", "seed": seed, "throughput_jobs_per_s": 0.5,
            "device_hit_ratio": 0.5, "dram_hit_ratio": 0.0, "ssd_hit_ratio": 0.0,
            "saturated": (variant, seed) in unstable, "failed_gates": "",
            "unstable": "grows" if (variant, seed) in unstable else "",
            "jct_bound_s": 4.0, "rate_bound_jobs_per_s": 2.0,
            **dict.fromkeys(FAIRNESS.columns, 1.0),
        }
        for variant, seed in jobs
    ]  # fmt: skip
    rows = [
        {"cell": f"{variant}_{seed}", "variant": variant, "load": "0.5 jobs/s", "seed": seed,
         "job_id": job, "jct_s": jct_s}
        for (variant, seed), times in jobs.items()
        for job, jct_s in times.items()
    ]  # fmt: skip
    return Results(pd.DataFrame(cells), pd.DataFrame(rows), ())


def frame(jobs: Jobs, variant: str) -> pd.DataFrame:
    rows = results(jobs).jobs
    return rows[rows["variant"] == variant]


JOBS: Jobs = {
    # Job "a" of seed 2 is another program than job "a" of seed 1.
    ("fcfs", 1): {"a": 10.0, "b": 30.0},
    ("fcfs", 2): {"a": 80.0, "c": 40.0},
    ("fast", 1): {"a": 5.0, "b": 5.0},
    ("fast", 2): {"a": 20.0, "c": 20.0},
}


def test_ratios_are_paired_by_seed_and_averaged_geometrically() -> None:
    # Seed 1: 20 s ÷ 5 s = 4; seed 2: 60 s ÷ 20 s = 3; √12.
    found = compare(frame(JOBS, "fcfs"), frame(JOBS, "fast"), steady=True)
    assert found is not None
    assert found.mean.value == pytest.approx(12**0.5)


def test_only_jobs_that_both_sides_measured_count() -> None:
    jobs = {**JOBS, ("fast", 2): {"a": 20.0, "d": 500.0}}
    # Seed 2: 80 s ÷ 20 s = 4, with job a only.
    found = compare(frame(jobs, "fcfs"), frame(jobs, "fast"), steady=True)
    assert found is not None
    assert found.mean.value == pytest.approx(4)


def test_no_common_job_is_no_comparison() -> None:
    jobs: Jobs = {("fcfs", 1): {"a": 10.0}, ("fast", 2): {"a": 10.0}}
    assert compare(frame(jobs, "fcfs"), frame(jobs, "fast"), steady=True) is None


def by_variant(found: Results) -> dict[str, Point]:
    return {point.variant: point for point in points(found, "fcfs", steady=True)}


def test_the_mean_of_a_point_is_the_mean_of_its_seeds_whose_windows_count_alike() -> None:
    found = by_variant(results(JOBS | {("fcfs", 2): {"a": 80.0, "c": 40.0, "d": 60.0}}))
    assert found["fcfs"].jct_mean_s.value == pytest.approx((20 + 60) / 2)
    assert found["fast"].jct_mean_s.value == pytest.approx((5 + 20) / 2)
    assert found["fcfs"].against is None
    assert found["fast"].against is not None


def test_no_ratio_is_given_if_the_baseline_is_unstable_with_one_of_the_seeds() -> None:
    found = by_variant(results(JOBS, unstable=[("fcfs", 1)]))
    assert found.keys() == {"fast"}
    assert found["fast"].against is None


def test_a_variant_that_is_unstable_with_one_of_the_seeds_has_no_point() -> None:
    assert by_variant(results(JOBS, unstable=[("fast", 2)])).keys() == {"fcfs"}
