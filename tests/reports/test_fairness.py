"""Fairness beside the mean: slowdowns, waits, long jobs, and who gains at the expense of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reports.answer.findings import distance_from_bound, distance_from_rate_bound
from reports.answer.starvation import starvation
from reports.capacity.search import Chain
from reports.metrics.cells import Results, collect
from reports.metrics.fairness import FAIRNESS, fairness
from reports.run_folder.read import load_run
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import capacities
from reports.statistics.points import Comparison, Point
from tests.reports.make_run import turn, write_cell, write_sweep
from tests.reports.test_capacity_answer import number
from tests.sentences import mentions

GAIN = Comparison(Estimate(1.5, 1.3, 1.7), Estimate(1.2, 1.1, 1.3))


def point(variant: str, mean_s: float, against: Comparison | None, **changes: Any) -> Point:
    mean = Estimate(mean_s, mean_s, mean_s)
    hits = dict.fromkeys(("device", "dram", "ssd"), 0.0)
    made = Point(
        *(variant, "", False, "0.5 jobs/s", 0.5, 100, mean, {}, 0.5, hits, False, False),
        against,
    )
    return replace(made, **changes)


def results(**p99: Sequence[float]) -> Results:
    """Return cells of variants with these P99 slowdowns by seed, which are equal otherwise."""
    rows = [
        {"variant": variant, "load": "0.5 jobs/s", "seed": seed, "jct_bound_s": 1.0}
        | dict.fromkeys(FAIRNESS.columns, 1.0)
        | {"slowdown_p99": value}
        for variant, values in p99.items()
        for seed, value in enumerate(values, 1)
    ]
    return Results(pd.DataFrame(rows), pd.DataFrame(), ())


POINTS = [point("fcfs", 10.0, None), point("fast", 5.0, GAIN)]


def test_a_variant_that_starves_some_jobs_is_named_with_the_measure() -> None:
    (caveat,) = starvation(POINTS, results(fcfs=[2, 3, 4], fast=[8.1, 12, 15.9]), "fcfs")
    assert mentions(caveat, "fcfs", "fast at 0.5 jobs/s", "P99 slowdown 4.0x", "95% CI")


def test_on_a_live_server_the_tail_of_jcts_counts_and_not_the_estimated_slowdown() -> None:
    live = results(fcfs=[2, 3, 4], fast=[8.1, 12, 15.9])
    live.cells["jct_bound_s"] = math.nan
    live.cells["jct_p99_s"] = [10.0, 10.0, 10.0, 19.0, 20.0, 21.0]
    (caveat,) = starvation(POINTS, live, "fcfs")
    assert "fast at 0.5 jobs/s (P99 JCT 2.0x as high" in caveat
    assert "slowdown" not in caveat


@pytest.mark.parametrize(
    ("p99", "why"),
    [
        ([2.04, 3.06, 4.08], "2% more does not matter"),
        ([1.0, 12.0, 4.0], "the interval contains 1"),
        ([1.0, 1.5, 2.0], "it is fairer"),
        ([8.0, 12.0], "two seeds say too little"),
    ],
)
def test_a_variant_is_not_named_without_a_significant_loss(p99: list[float], why: str) -> None:
    assert not starvation(POINTS, results(fcfs=[2, 3, 4], fast=p99), "fcfs"), why


def test_a_variant_that_is_not_faster_does_not_gain_at_the_expense_of_others() -> None:
    slow = [POINTS[0], point("fast", 10.0, replace(GAIN, mean=Estimate(1.0, 0.9, 1.1)))]
    assert not starvation(slow, results(fcfs=[2, 3, 4], fast=[8.1, 12, 15.9]), "fcfs")


def test_columns_of_fairness_worked_by_hand() -> None:
    # Job k of 10 needs k seconds alone. The longest takes 100 s, the others twice their time.
    least_s = np.arange(1.0, 11.0)
    jct_s = np.append(2 * least_s[:-1], 100.0)
    order = np.array([3, 9, 0, 1, 2, 8, 7, 6, 5, 4])
    jobs = {"jct_s": jct_s, "least_s": least_s, "slowdown": jct_s / least_s}
    found = fairness(
        {name: values[order] for name, values in jobs.items()}, {"queue_s": np.array([0.5, 7.0])}
    )
    assert found == pytest.approx(
        {
            "slowdown_mean": 2.8,
            "slowdown_p99": 2 + 8 * 0.91,  # between the ninth and the tenth, at rank 8.91
            "slowdown_max": 10.0,
            "jain_index": 4.6**2 / (10 * (9 * 0.25 + 0.01)),
            "queue_max_s": 7.0,
            "jct_short_third_s": 5.0,  # 2, 4, 6, 8
            "jct_middle_third_s": 12.0,
            "jct_long_third_s": (16 + 18 + 100) / 3,
            "jct_longest_tenth_s": 100.0,
        }
    )


def test_jcts_by_length_are_unknown_without_least_times() -> None:
    unknown = np.full(20, np.nan)
    jobs = {"jct_s": np.ones(20), "least_s": unknown, "slowdown": np.ones(20)}
    assert math.isnan(fairness(jobs, {"queue_s": np.zeros(1)})["jct_longest_tenth_s"])


def test_the_distance_from_the_bound_is_rounded_up_and_in_order_of_the_mean() -> None:
    points = [
        point("fcfs", 10.001, None, pooled={"jct_bound_s": 4.0}),
        point("fast", 5.0, GAIN, pooled={"jct_bound_s": 4.0}),
        point("measured", 4.0, GAIN),
    ]
    (sentence,) = distance_from_bound(points, "0.5 jobs/s")
    assert mentions(sentence, "0.5 jobs/s", "4.00 s", "fast is 1.25x", "fcfs 2.51x")
    assert distance_from_bound(points, "9 jobs/s") == []


def test_capacities_are_shares_of_the_rate_that_no_schedule_sustains() -> None:
    found = {Chain("fcfs", 1): number(0.5), Chain("fast", 1): number(1.5)}
    searched = capacities(found, {"fcfs": "", "fast": ""}, "fcfs")
    points = [
        point("fcfs", 10.0, None, pooled={"rate_bound_jobs_per_s": 1.9}),
        point("fast", 5.0, GAIN, pooled={"rate_bound_jobs_per_s": 2.0}),
        point("measured", 4.0, GAIN),
    ]
    (sentence,) = distance_from_rate_bound(searched, points)
    assert mentions(sentence, "2 jobs/s", "fast 75% and fcfs 25%")
    assert distance_from_rate_bound(searched, points[2:]) == []


def test_a_cell_whose_numbers_are_those_of_no_machine_has_no_result(tmp_path: Path) -> None:
    run = write_sweep(tmp_path / "run", ["fcfs"])
    numbers = dict.fromkeys(
        [
            *("kv_blocks", "block_tokens", "max_model_len", "kv_bytes_per_token", "base_ps"),
            *("weights_ps", "token_ps", "sequence_ps", "context_ps", "pair_ps", "request_ps"),
            *("dram_bytes_per_s", "ssd_bytes_per_s"),
        ],
        1,
    )
    profile = {"hardware": "x", "model": "y", "provenance": "analytic", **numbers}
    limits = {"max_num_seqs": 1, "step_tokens": 1}
    write_cell(run, "fcfs", [turn()], profile=profile | {"token_ps": -1}, limits=limits)
    ((_, why),) = collect(load_run(run)).missing
    assert mentions(why, "cell.json", "no machine", "profile")
