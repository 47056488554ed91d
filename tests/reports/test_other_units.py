"""Agents, jobs per second and jobs in flight convert into each other by Little's law, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reports.answer.costs import OtherUnits, other_units
from reports.capacity.estimate import Capacity, Kind
from reports.loads import AGENTS, RATES
from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from reports.statistics.capacities import VariantCapacity
from tests.reports.make_run import turn, write_cell, write_sweep

WINDOW = {"first_job": 0, "jobs": 2, "from_s": 0.0, "to_s": 10.0, "finished_jobs": 4}


def row_of(run: Path, *, sweep: Mapping[str, Any], done: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a cell whose two measured jobs take 3 and 5 s, in a window of 10 s."""
    turns = [
        turn(job, job_index=index, job_turns=1, first_token_at_s=0.0, decode_s=decode_s)
        for index, (job, decode_s) in enumerate((("p", 3.0), ("q", 5.0)))
    ]
    write_sweep(run, ["fcfs"])
    write_cell(run, "fcfs", turns, finished={"window": WINDOW, "steady": True, **done}, **sweep)
    (row,) = collect(load_run(run)).cells.to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_jobs_in_flight_are_those_that_arrive_times_their_mean_jct(tmp_path: Path) -> None:
    # 0.2 jobs/s arrive and take 4 s. On average they find one job, not 0.8.
    row = row_of(tmp_path, sweep={"jps": 0.2}, done={"jobs_in_system": {"mean": 1.0}})
    assert row["jobs_in_flight"] == pytest.approx(0.8)
    assert row["little_ratio"] == pytest.approx(1.25)


def test_arrivals_that_are_not_poisson_do_not_find_the_mean(tmp_path: Path) -> None:
    sweep = {"jps": 0.2, "arrivals": "constant"}
    row = row_of(tmp_path, sweep=sweep, done={"jobs_in_system": {"mean": 1.0}})
    assert row["jobs_in_flight"] == pytest.approx(0.8)
    assert math.isnan(row["little_ratio"])


def test_within_a_horizon_jobs_are_in_flight_until_the_last_has_ended(tmp_path: Path) -> None:
    sweep = {"jps": 0.2, "horizon": {"seconds": 10.0}}
    done = {"jobs_in_system": {"mean": 0.5}, "virtual_s": 16.0}
    row = row_of(tmp_path, sweep=sweep, done=done)
    assert row["jobs_in_flight"] == pytest.approx((3 + 5) / 16)
    assert math.isnan(row["little_ratio"])


@pytest.mark.parametrize(("arrivals", "agents", "ratio"), [("agents", 2, 1.25), ("agents:6", 4, 1)])
def test_agents_are_those_at_work_and_those_that_think(
    tmp_path: Path, arrivals: str, agents: int, ratio: float
) -> None:
    # 0.4 jobs/s finish: 1.6 in flight, and with 6 s of thought before each 2.4 more agents.
    row = row_of(tmp_path, sweep={"jps": None, "arrivals": arrivals, "agents": agents}, done={})
    assert row["jobs_in_flight"] == pytest.approx(1.6)
    assert row["little_ratio"] == pytest.approx(ratio)


def capacity(*sustained: float | None) -> VariantCapacity:
    by_seed = {
        seed: Capacity(Kind.FOUND, 1.0, load, 9.0) for seed, load in enumerate(sustained, start=1)
    }
    return VariantCapacity("a", "", by_seed, None)


CELLS = pd.DataFrame(
    {
        "variant": "a",
        "seed": [1, 1, 2, 2],
        "jps": [0.2, 0.3, 0.2, 0.3],
        "throughput_jobs_per_s": [0.2, 0.3, 0.19, 0.31],
        "jobs_in_flight": [8.0, 20.0, 9.0, 22.0],
        "little_ratio": [1.0, 1.2, 1.02, 1.1],
    }
)


def test_each_seed_counts_at_the_highest_load_that_it_sustains() -> None:
    found = other_units([capacity(0.2, 0.3)], CELLS)["a"]
    # 8 · 1 and 22 · 1.1 in flight were counted, 32.2 ÷ 30.
    assert found == pytest.approx((0.255, 15.0, 32.2 / 30))
    assert found.text(AGENTS) == "0.255"
    assert found.lines(AGENTS)[0] == "22,000 a day"  # 0.255 · 86,400 = 22,032
    assert found.text(RATES) == "15"


def test_a_seed_that_sustains_nothing_leaves_no_number() -> None:
    assert other_units([capacity(0.2, None)], CELLS) == {}


def test_a_scheduler_without_a_finished_cell_has_no_number_yet() -> None:
    assert other_units([capacity(None, None)], CELLS.assign(variant="other")) == {}


@pytest.mark.parametrize(
    ("counted", "lines"),
    [(1.05, ()), (0.95, ()), (1.2, ("counted: 12 in flight",))],
)
def test_a_count_more_than_five_percent_off_littles_law_is_marked(
    counted: float, lines: tuple[str, ...]
) -> None:
    assert OtherUnits(0.5, 10.0, counted).lines(RATES) == lines


def test_a_number_that_was_not_counted_is_not_marked() -> None:
    assert OtherUnits(0.5, 10.0, math.nan).is_exact
