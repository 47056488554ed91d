"""Goodput: the share of the turns and of the jobs that are within the SLO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from tests.reports.make_run import turn, write_cell, write_sweep

IDLE = {"jct": {"mean": 4.0, "percentiles": [1.0] * 99}}
"""The mean JCT of an idle machine is 4 s."""


def streamed(index: int, program: str, turn_index: int, at_s: float, **parts: float) -> Any:
    """Return a turn whose first token comes after its queue; it decodes 10 tokens."""
    first_s = at_s + parts.get("queue_s", 0.0)
    place = {"job_index": index, "job_turns": 2, "first_token_at_s": first_s}
    return turn(program, turn_index, at_s, **place, **parts)


# The TTFTs of p are 1 and 6 s, those of q 2 and 0 s; all turns but the last of q decode for 1 s,
# 9 intervals between tokens. p takes from 0 to 9 s, q from 0 to 9.9 s.
TURNS = [
    streamed(0, "p", 0, 0.0, queue_s=1.0),
    streamed(0, "p", 1, 2.0, queue_s=6.0),
    streamed(1, "q", 0, 0.0, queue_s=2.0),
    streamed(1, "q", 1, 5.4, queue_s=0.0, decode_s=4.5),
]


def row_of(run: Path, slo: str, **done: Any) -> Mapping[str, Any]:
    window = {"first_job": 0, "jobs": 2, "from_s": 0.0, "to_s": 10.0, "finished_jobs": 2}
    finished = {"window": window, "steady": True, "idle_times_s": IDLE, **done}
    write_sweep(run, ["fcfs"], steady_state=True, **({"search": {"slo": slo}} if slo else {}))
    write_cell(run, "fcfs", TURNS, finished=finished)
    (row,) = collect(load_run(run)).cells.to_dict("records")
    return {str(name): value for name, value in row.items()}


@pytest.mark.parametrize(
    ("slo", "turns", "jobs"),
    [
        ("ttft_p95<=5s", 3 / 4, 1 / 2),
        ("ttft_p95<=1.5s", 2 / 4, 0),
        ("first_ttft_p50<=1.5s", 3 / 4, 1 / 2),  # only the first turn of q is later
        ("tpot_p95<=200ms", 3 / 4, 1 / 2),  # the last turn of q takes 0.5 s
        ("speed_p90>=3", 2 / 4, 0),  # 5, 1.4, 3.3 and 2.2 tokens/s
        ("ttft_p95<=5s,tpot_p95<=200ms", 2 / 4, 0),  # a turn of each
        ("ttft_p95<=5s,p95<=9.5s", 3 / 4, 0),  # p has a late turn, q is too long
    ],
)
def test_each_turn_and_job_is_compared_with_the_limits_by_itself(
    tmp_path: Path, slo: str, turns: float, jobs: float
) -> None:
    row = row_of(tmp_path, slo)
    assert (row["goodput_turns"], row["goodput_jobs"]) == (turns, jobs)


def test_limits_of_jcts_limit_no_turn(tmp_path: Path) -> None:
    row = row_of(tmp_path, "mean<=2.3x")  # 9.2 s
    assert math.isnan(row["goodput_turns"])
    assert row["goodput_jobs"] == 1 / 2


def test_an_unstable_cell_has_no_goodput(tmp_path: Path) -> None:
    row = row_of(tmp_path, "ttft_p95<=5s", steady=False, unstable="the queue grew")
    assert math.isnan(row["goodput_turns"])
    assert math.isnan(row["goodput_jobs"])


def test_without_an_slo_there_is_no_goodput(tmp_path: Path) -> None:
    assert "goodput_jobs" not in row_of(tmp_path, "")
