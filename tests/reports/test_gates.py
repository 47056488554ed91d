"""Validity gates of a cell, at their limits, and those that only a live engine can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from tests.reports.make_run import seal, turn, workload, write_cell, write_sweep
from tests.sentences import mentions


def failed_gates(run: Path, turns: list[dict[str, Any]], **done: Any) -> str:
    write_sweep(run, ["fcfs"])
    cell = write_cell(run, "fcfs", turns, engine="vllm", profile=None)
    finished = {"finished_programs": len(turns), "failed_turns": 0}
    (cell / "done.json").write_bytes(orjson.dumps(finished | done))
    seal(cell)
    (row,) = collect(load_run(run)).cells.to_dict("records")
    return str(row["failed_gates"])


def test_a_live_cell_without_faults_fails_no_gate(tmp_path: Path) -> None:
    done = {"prefix_caching": True, "external_hit_tokens": 1, "turns_per_replica": [1, 2]}
    assert failed_gates(tmp_path, [turn("p0")], **done) == ""


@pytest.mark.parametrize(
    ("done", "gate"),
    [
        ({"prefix_caching": False}, "prefix caching was off"),
        (
            {"external_hit_tokens": 0},
            "no token came from the offload tier",
        ),
        ({"turns_per_replica": [3, 0, 1]}, "replica 1 received no turn"),
        ({"turns_per_replica": [0, 4, 0]}, "replica 0 and 2 received no turn"),
    ],
)
def test_a_fault_of_a_live_engine_that_causes_no_error_fails_the_cell(
    tmp_path: Path, done: dict[str, Any], gate: str
) -> None:
    assert mentions(failed_gates(tmp_path, [turn("p0")], **done), gate)


@pytest.mark.parametrize("done", [{}, {"prefix_caching": None, "external_hit_tokens": None}])
def test_what_an_engine_does_not_report_fails_no_gate(tmp_path: Path, done: dict[str, Any]) -> None:
    assert failed_gates(tmp_path, [turn("p0")], **done) == ""


def test_a_client_that_is_late_for_one_hundredth_of_the_jct_passes(tmp_path: Path) -> None:
    # 0.1 s late and 9.9 s in the server.
    assert failed_gates(tmp_path, [turn("p0", sent_at_s=0.1, decode_s=9.9)]) == ""


@pytest.mark.parametrize("jct_s", [0.1, 1.0, 1000.0])
def test_the_residual_is_a_share_of_the_programs_time_however_short(
    tmp_path: Path, jct_s: float
) -> None:
    # The parts account for 98% of the time.
    turns = [turn("p0", decode_s=0.98 * jct_s, finished_at_s=jct_s)]
    gate = "the parts of a program's time differ from it by 2.0%"
    assert failed_gates(tmp_path, turns) == gate


def test_more_turns_than_the_workload_has_fail_the_cell_too(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    turns = [turn("p0"), turn("p1")]
    write_cell(tmp_path, "fcfs", turns, workload=workload(turns) | {"turns": 1})
    (row,) = collect(load_run(tmp_path)).cells.to_dict("records")
    assert row["failed_gates"] == "2 of 1 turns were recorded"


def test_all_failed_gates_are_named(tmp_path: Path) -> None:
    turns = [turn("p0", error="timed out"), turn("p1", sent_at_s=1.0)]
    named = "1 failed turn in 1 job (first: timed out)", "prefix caching", "50.0% of the JCT"
    assert mentions(failed_gates(tmp_path, turns, prefix_caching=False), *named)


def test_a_failed_program_is_left_out_of_the_residual(tmp_path: Path) -> None:
    # The parts of p0, whose turn failed, account for 1 of 9 s.
    turns = [turn("p0", error="timed out", finished_at_s=9.0), turn("p1")]
    gates = failed_gates(tmp_path, turns)
    assert mentions(gates, "1 failed turn in 1 job")
    assert "differ" not in gates


SCENARIO = {"name": "agentx", "window_s": 100.0, "start": [0.25, 0.75], "warm_up_requests": 10}


def scenario_row(run: Path, turns: list[dict[str, Any]], **done: Any) -> dict[str, Any]:
    write_sweep(run, ["fcfs"])
    window = {"first_job": 0, "jobs": 0, "from_s": 0.0, "to_s": 100.0, "finished_jobs": 0}
    finished = {"window": window, "virtual_s": None} | done
    given = {"engine": "vllm", "profile": None, "scenario": SCENARIO, "finished": finished}
    write_cell(run, "fcfs", turns, **given)
    (row,) = collect(load_run(run)).cells.to_dict("records")
    return dict(row)


def test_requests_that_a_scenario_allows_to_fail_or_a_stall_delays_are_work(tmp_path: Path) -> None:
    # A stall hits one of 40 jobs. Its request is no latency, but its 110 tokens were computed.
    turns = [turn(f"p{k}", at_s=2.0 * k) for k in range(39)]
    turns += [turn("p39", at_s=96.0, decode_s=2.0), turn("p40", at_s=90.0, error="timed out")]
    row = scenario_row(tmp_path, turns, failed_turns=1, client_stalls=[[97.0, 98.0]])
    assert (row["failed_gates"], row["stalled_jobs"]) == ("", 1)
    assert row["interactivity_p90"] == 10.0
    assert row["tokens_per_s_per_gpu"] == 40 * 110 / 100
    sizes = "window 100 s, at least 15 min", "41 sessions", "393", "seed 1, not 42"
    assert mentions(row["broken_rules"], *sizes)


def test_a_late_client_fails_a_scenario_whose_jobs_are_cut(tmp_path: Path) -> None:
    # Of 2 s from when the request is due.
    row = scenario_row(tmp_path, [turn("p0", sent_at_s=1.0)])
    assert mentions(row["failed_gates"], "client lateness", "50.0%", "number of agents")
