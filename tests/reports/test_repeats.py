"""Cells that run several times: what a draw is, and what intervals cover."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from reports.compare.baseline import read_side
from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from reports.statistics.points import by_draw, compare, mean_jct, points
from tests.reports.make_run import turn, write_cell, write_sweep

JOBS = 10


def jobs(*rows: tuple[int, int, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["seed", "repeat", "job_id", "jct_s"])


def repeated(by_repeat: list[float], seed: int = 1) -> pd.DataFrame:
    """Return jobs that all take the same time in a repeat."""
    rows = [
        (seed, repeat, f"p{job}", jct_s)
        for repeat, jct_s in enumerate(by_repeat, start=1)
        for job in range(JOBS)
    ]
    return jobs(*rows)


def test_repeats_of_one_seed_are_draws() -> None:
    found = by_draw(jobs((7, 1, "a", 2.0), (7, 2, "a", 4.0)))
    assert found[["seed", "jct_s"]].values.tolist() == [[1, 2.0], [2, 4.0]]


def test_repeats_of_several_seeds_are_averaged_in_each_seed() -> None:
    found = by_draw(jobs((1, 1, "a", 2.0), (1, 2, "a", 4.0), (2, 1, "a", 5.0), (2, 2, "a", 7.0)))
    assert found[["seed", "jct_s"]].values.tolist() == [[1, 3.0], [2, 6.0]]


def test_the_interval_of_one_seed_covers_the_variation_between_repeats() -> None:
    """The baseline takes 10 s, the variant 10, 5 and 20 s: on average it is slower, but the order
    changes between repeats."""
    base = repeated([10.0, 10.0, 10.0])
    found = compare(base, repeated([10.0, 5.0, 20.0]))
    assert found is not None
    assert found.mean.value == pytest.approx(30 / 35)
    assert found.mean.low < 1 < found.mean.high
    once = compare(base[base["repeat"] == 1], repeated([20.0]))
    assert once is not None
    assert once.mean.high < 1  # one measurement cannot show the variation
    mean = mean_jct(repeated([10.0, 5.0, 20.0]))
    assert mean.value == pytest.approx(35 / 3)
    assert mean.low < 10 < 15 < mean.high


def run(folder: Path, jct_s: list[float]) -> Path:
    write_sweep(folder, ["fcfs"], engine="vllm", repeats=[1, 2, 3])
    for repeat, decode_s in enumerate(jct_s, start=1):
        turns = [turn(f"p{job}", 0, 50.0 * job, decode_s=decode_s) for job in range(JOBS)]
        fields = {} if repeat == 1 else {"repeat": repeat}
        cell = write_cell(folder, "fcfs", turns, engine="vllm", **fields)
        cell.rename(folder / f"fcfs_jps0.5_seed1_repeat{repeat}")
    return folder


def test_the_cells_of_repeats_are_one_point_and_a_missing_one_is_named(tmp_path: Path) -> None:
    """The jobs of the two cells take 4 s and 6 s."""
    loaded = load_run(run(tmp_path, [4.0, 6.0]))
    results = collect(loaded)
    (point,) = points(results, "fcfs")
    assert (point.jobs, point.jct_mean_s.value) == (2 * JOBS, pytest.approx(5.0))
    assert results.missing == (("fcfs_jps0.5_seed1_repeat3", "not run yet"),)
    assert results.cells["repeat"].tolist() == [1, 2]


def test_a_comparison_of_two_runs_uses_the_mean_of_repeats(tmp_path: Path) -> None:
    side = read_side(run(tmp_path, [4.0, 6.0, 11.0]))
    assert len(side.jobs) == JOBS
    assert set(side.jobs["jct_s"]) == {7.0}
