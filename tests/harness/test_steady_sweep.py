"""Sweeps of a stream of jobs: files, resuming, and settings."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small import contents, killed_before_the_end, run_sweep, small_plan

from harness.engines.base import engine_kind
from harness.load.settings import Load, Machine, SweepSettings
from harness.sweep.cell import idle_times
from harness.sweep.plan import SweepPlan
from harness.sweep.resolve import fixed_by, resolve
from tests.lines import read_lines
from tests.sentences import mentions


def steady_plan(policies: str = "fcfs", jps: tuple[float, ...] = (0.2,)) -> SweepPlan:
    return replace(small_plan(policies, jps), steady=True)


def done_of(run: Path, cell: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / cell / "done.json").read_text())
    return found


def test_a_resumed_sweep_has_the_bytes_of_an_uninterrupted_one(tmp_path: Path) -> None:
    plan = steady_plan("fcfs,continuum", (0.2, 0.8))
    run_sweep(plan, tmp_path / "once", workers=1)
    run_sweep(plan, tmp_path / "resumed", workers=1, run=killed_before_the_end)
    run_sweep(plan, tmp_path / "resumed", workers=2)
    assert contents(tmp_path / "once") == contents(tmp_path / "resumed")
    assert done_of(tmp_path / "once", "fcfs_jps0.2_seed1")["steady"]


def test_every_variant_and_rate_has_the_same_jobs(tmp_path: Path) -> None:
    run_sweep(steady_plan("fcfs,continuum", (0.2, 0.4)), tmp_path, workers=1)
    ids, times = [], []
    for variant in ("fcfs", "continuum"):
        for jps in (0.2, 0.4):
            turns = read_lines(tmp_path / f"{variant}_jps{jps}_seed1/turns.jsonl")
            first = sorted((t["job_index"], t["program_id"], t["scheduled_at_s"] * jps)
                           for t in turns if not t["turn"])[:425]  # fmt: skip
            ids.append([job[:2] for job in first])
            # The burst has 25 jobs and, since a job takes less than 6 s alone, less than 5 more.
            times.append([at - first[30][2] for _, _, at in first[30:]])
    assert len(ids[0]) == 425
    assert all(other == ids[0] for other in ids)
    assert all(other == pytest.approx(times[0], abs=1e-6) for other in times)


def test_there_is_no_drain(tmp_path: Path) -> None:
    """Jobs go on arriving until the last measured job has finished."""
    run_sweep(steady_plan(), tmp_path, workers=1)
    turns = read_lines(tmp_path / "fcfs_jps0.2_seed1/turns.jsonl")
    done = done_of(tmp_path, "fcfs_jps0.2_seed1")
    window = done["window"]
    measured = range(window["first_job"], window["first_job"] + window["jobs"])
    last_end_s = max(turn["finished_at_s"] for turn in turns if turn["job_index"] in measured)
    assert max(turn["job_index"] for turn in turns) >= measured.stop
    assert done["virtual_s"] == pytest.approx(max(last_end_s, window["to_s"]), abs=1.0)
    turns_of_measured = sum(turn["job_index"] in measured for turn in turns)
    assert turns_of_measured == 3 * window["jobs"]


def test_the_idle_jct_is_that_of_each_job_alone(tmp_path: Path) -> None:
    plan = small_plan()
    alone = idle_times(plan, 1, tmp_path)
    # Three equal programs: gaps of 1 and 2 s, and the time of 1500 prompt and 150 output tokens.
    assert 3.0 < alone.jct.mean < 6.0
    assert alone.jct.percentile(50) == pytest.approx(alone.jct.percentile(99), rel=0.01)
    run_sweep(replace(plan, arrivals=replace(plan.arrivals, kind="closed", in_flight=1)),
              tmp_path / "closed", workers=1)  # fmt: skip
    turns = read_lines(tmp_path / "closed/fcfs_jps0.5_seed1/turns.jsonl")
    ends = [turn["finished_at_s"] for turn in turns if turn["turn"] == 2]
    assert alone.jct.mean == pytest.approx(max(ends) / 3, rel=1e-6)


def test_all_cells_of_a_seed_have_the_same_idle_jct(tmp_path: Path) -> None:
    run_sweep(steady_plan("fcfs,continuum", (0.2, 0.8)), tmp_path, workers=2)
    cells = [json.loads(path.read_text()) for path in tmp_path.glob("*/done.json")]
    assert len(cells) == 4
    assert len({json.dumps(done["idle_times_s"]) for done in cells}) == 1


def test_a_rate_far_above_every_capacity_is_unstable_and_one_that_is_absurd_fails(
    tmp_path: Path,
) -> None:
    outcome = run_sweep(steady_plan(jps=(50.0, 1e6)), tmp_path, workers=1)
    assert "jobs in the system, more than" in done_of(tmp_path, "fcfs_jps50_seed1")["unstable"]
    (error,) = outcome.failed.values()
    assert mentions(error, "--jps 1e+06", "at most 10,000", "lower the rate")


def plan_of(engine: str = "sim", **load: Any) -> SweepPlan:
    return resolve(
        SweepSettings(jps=load.pop("jps", "0.3"), load=Load(**load),
                      machine=Machine(engine=engine), policies="fcfs")
    )  # fmt: skip


def test_cells_of_a_stream_say_so_and_those_of_a_fixed_set_do_not() -> None:
    plan = plan_of()
    cell = plan.cell_record(plan.cells()[0])
    assert cell.steady_state
    assert cell.workload.recipe == "swe-bench"
    fixed = small_plan()
    assert not fixed.cell_record(fixed.cells()[0]).steady_state


def test_live_engines_and_arrivals_without_a_rate_run_a_fixed_set_of_jobs() -> None:
    def option(engine: str = "sim", **load: Any) -> str:
        return fixed_by(Load(**load), engine_kind(engine))

    assert {option(), option("vllm-virtual"), option(arrivals="gamma:0.5")} == {""}
    assert option(once=True) == "--once"
    assert option("vllm") == "--engine vllm"
    assert option("http://user:key@127.0.0.1:8000") == "--engine URL"
    assert option(arrivals="recorded", once=True) == "--arrivals recorded"


def test_recorded_and_closed_arrivals_run_a_fixed_set_of_jobs() -> None:
    closed = partial(plan_of, jps=None)
    assert not closed(arrivals="closed:4").steady
    assert not closed(arrivals="closed:4").workload.fresh
    for process in ("poisson", "gamma:0.5", "constant"):
        assert plan_of(arrivals=process).steady


def test_programs_limits_the_population() -> None:
    plan = plan_of(programs=7)
    assert (len(plan.workload.programs), plan.workload.fresh) == (7, None)
    assert plan.turns_per_cell == 0
