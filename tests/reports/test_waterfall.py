"""The parts of a job's time have their known values and sum to the JCT."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.metrics.cells import Results, collect
from reports.metrics.waterfall import WATERFALL
from reports.run_folder.read import load_run
from tests.reports.make_run import simulate, turn, write_cell, write_sweep

PARTS = list(WATERFALL)


def results_of(run: Path, turns: Sequence[Mapping[str, Any]], **config: Any) -> Results:
    write_sweep(run, ["fcfs"])
    write_cell(run, "fcfs", turns, **config)
    return collect(load_run(run))


def job_of(run: Path, turns: Sequence[Mapping[str, Any]], **config: Any) -> dict[str, Any]:
    (job,) = results_of(run, turns, **config).jobs.to_dict("records")
    return {str(k): v for k, v in job.items()}


def parts_of(job: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts that are not zero."""
    return {part: round(job[part], 9) for part in PARTS if job[part]}


def test_each_second_of_a_job_belongs_to_one_part(tmp_path: Path) -> None:
    first = turn("p", 0, 0.0, sent_at_s=0.5, queue_s=2.0, prefill_s=1.0, decode_s=3.0)
    second = turn(
        "p", 1, 10.5, queue_s=4.0, load_s=0.25, prefill_s=1.0, decode_s=2.0, preempted_s=5.0,
        recompute_s=0.75, gap_s=4.0, prompt_tokens=100, kept_tokens=80, device_hit_tokens=40,
    )  # fmt: skip
    job = job_of(tmp_path, [first, second])
    # Of 60 computed tokens, 40 had been in the context before: two thirds of one second.
    assert parts_of(job) == {
        "lateness_s": 0.5,
        "first_queue_s": 2.0,
        "requeue_s": 4.0,
        "reload_s": 0.25,
        "recomputed_prefill_s": pytest.approx(2 / 3),
        "first_prefill_s": pytest.approx(1 + 1 / 3),
        "decode_s": 5.0,
        "preemption_s": 5.75,
        "tool_s": 4.0,
    }
    assert job["jct_s"] == pytest.approx(23.5)
    assert job["bubble_s"] == 6.0


def test_slowdown_is_relative_to_the_time_that_no_scheduler_can_avoid(tmp_path: Path) -> None:
    # Of 10 s, 4 s are queueing and half of the one second of prefill is recomputed.
    job = job_of(
        tmp_path,
        [
            turn("p", 0, 0.0, decode_s=3.5),
            turn("p", 1, 5.0, gap_s=1.5, queue_s=4.0, prefill_s=1.0, decode_s=0.0, kept_tokens=50),
        ],
    )
    assert job["slowdown"] == pytest.approx(10 / 5.5)


def test_with_more_hits_than_kept_tokens_nothing_counts_as_recomputed(
    tmp_path: Path,
) -> None:
    turns = [turn("p"), turn("p", 1, 1.0, prefill_s=1.0, kept_tokens=30, device_hit_tokens=50)]
    assert job_of(tmp_path, turns)["first_prefill_s"] == pytest.approx(1.0)


def test_recomputed_prefill_is_at_most_the_prefill(tmp_path: Path) -> None:
    # A live engine may count fewer tokens in a prompt than the trace says were kept: of the 60
    # computed tokens, all had been in the context, and not 110.
    again = turn("p", 1, 1.0, prefill_s=1.0, prompt_tokens=100, kept_tokens=150)
    again["device_hit_tokens"] = 40
    parts = parts_of(job_of(tmp_path, [turn("p"), again]))
    assert parts == {"recomputed_prefill_s": 1.0, "decode_s": 2.0}


def test_time_that_a_root_waits_for_its_sub_agents_is_one_part(tmp_path: Path) -> None:
    # The root decodes for 1 + 1 s, waits 5 s and runs a tool for 2 s, so it ends at 9. Its second
    # sub-agent, which is never joined, ends at 12. The parts of sub-agents do not count.
    job = job_of(
        tmp_path,
        [
            turn("root", 0, 0.0),
            turn("child", 0, 1.0, job_id="root", queue_s=4.0),
            turn("root", 1, 8.0, gap_s=2.0, wait_s=5.0),
            turn("other", 0, 9.0, job_id="root", decode_s=3.0),
        ],
    )
    assert parts_of(job) == {"decode_s": 2.0, "tool_s": 2.0, "subagents_s": 8.0}
    assert (job["jct_s"], job["bubble_s"]) == (12.0, 4.0)


UNREPORTED = dict.fromkeys(
    [
        *("queue_s", "prefill_s", "device_hit_tokens", "preemptions", "load_s", "preempted_s"),
        *("recompute_s", "dram_hit_tokens", "ssd_hit_tokens"),
    ]
)


def test_without_engine_timings_the_time_to_the_first_token_is_one_part(
    tmp_path: Path,
) -> None:
    line = turn("p", first_token_at_s=1.5, finished_at_s=4.0, decode_s=2.5) | UNREPORTED
    found = results_of(tmp_path, [line], engine="http://localhost")
    (job,) = found.jobs.to_dict("records")
    assert parts_of({str(k): v for k, v in job.items()}) == {"decode_s": 2.5, "server_s": 1.5}
    assert pd.isna(job["slowdown"])
    assert found.cells["residual"].tolist() == [0.0]


def test_prefill_whose_hits_are_not_reported_is_not_split(tmp_path: Path) -> None:
    line = turn("p", queue_s=1.0, prefill_s=2.0, finished_at_s=4.0) | {"device_hit_tokens": None}
    job = job_of(tmp_path, [line], engine="http://localhost")
    assert parts_of(job) == {"first_queue_s": 1.0, "decode_s": 1.0, "server_s": 2.0}


def test_jobs_come_in_order_of_arrival_without_those_that_failed(tmp_path: Path) -> None:
    turns = [turn("a", 0, 5.0), turn("b", 0, 1.0), turn("c", 0, 3.0, error="gone")]
    jobs = results_of(tmp_path, turns).jobs
    assert jobs[["job_id", "arrival_s"]].to_numpy().tolist() == [["b", 1.0], ["a", 5.0]]


def test_time_that_no_part_explains_fails_the_residual_gate(tmp_path: Path) -> None:
    # From 1 to 4 s the job waits, but only one second is recorded as waiting.
    turns = [turn("p", 0, 0.0), turn("p", 1, 4.0, wait_s=1.0)]
    (row,) = results_of(tmp_path, turns).cells.to_dict("records")
    assert row["residual"] == pytest.approx(2 / 5)
    assert "the parts of" in row["failed_gates"]


@given(jps=st.floats(0.02, 3.0), seed=st.integers(0, 99), hit=st.floats(0, 1))
def test_parts_are_never_negative_and_sum_to_the_jct(
    tmp_path_factory: pytest.TempPathFactory, jps: float, seed: int, hit: float
) -> None:
    turns = simulate(hit, True, jps, seed, 12)
    jobs = results_of(tmp_path_factory.mktemp("run"), turns).jobs
    assert (jobs[PARTS].to_numpy() >= 0).all()
    assert jobs[PARTS].sum(axis=1).to_numpy() == pytest.approx(jobs["jct_s"].to_numpy())
    assert (jobs["slowdown"] >= 1).all()


def test_an_answer_that_is_not_streamed_is_server_time_without_a_breakdown(
    tmp_path: Path,
) -> None:
    """The answer takes 4 s, of which the engine reports 1 s as queueing."""
    whole = {"first_token_at_s": None, "prefill_s": None, "decode_s": None, "finished_at_s": 4.0}
    parts = parts_of(job_of(tmp_path, [turn(queue_s=1.0, **whole)], engine="http://h"))
    assert parts == {"first_queue_s": 1.0, "server_s": 3.0}
