from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import simulate, turn, workload, write_cell, write_sweep

from reports.load import load_run
from reports.metrics import collect


def row_of(run: Path, turns: Sequence[Mapping[str, Any]], **config: Any) -> dict[str, Any]:
    write_sweep(run, ["fcfs"])
    write_cell(run, "fcfs", turns, **config)
    return collect(load_run(run)).cells.to_dict("records")[0]  # type: ignore[return-value]


def test_jct_runs_from_the_first_arrival_to_the_last_departure(tmp_path: Path) -> None:
    # p0: due at 2, 1 s of decode, gap 3 s, 1 s of decode: 2 → 7.
    # p1: due at 0 but sent at 4, 1 s of decode: 0 → 5, its lateness included.
    row = row_of(
        tmp_path,
        [
            turn("p0", 0, 2.0),
            turn("p0", 1, 6.0, gap_s=3.0),
            turn("p1", 0, 0.0, sent_at_s=4.0),
        ],
    )
    assert (row["jobs"], row["jct_mean_s"]) == (2, 5.0)
    # 2 jobs from 0 to 7; 4 s late of 10 s in all.
    assert row["throughput_jobs_per_s"] == pytest.approx(2 / 7)
    assert row["lateness_ratio"] == pytest.approx(0.4)
    assert "client lateness is 40.0% of the JCT" in row["failed_gates"]


def test_a_sub_agent_counts_inside_the_job_of_its_root(tmp_path: Path) -> None:
    # The root's turns end at 1 and 9; its sub-agent, which nobody waits for, at 12.
    row = row_of(
        tmp_path,
        [
            turn("root", 0, 0.0),
            turn("child", 0, 1.0, job_id="root", decode_s=11.0),
            turn("root", 1, 8.0, gap_s=2.0, wait_s=5.0),
        ],
    )
    assert (row["jobs"], row["jct_mean_s"]) == (1, 12.0)
    assert row["residual"] == pytest.approx(0.0)
    assert row["failed_gates"] == ""


def test_percentiles_are_linear_between_ranks(tmp_path: Path) -> None:
    # JCTs 1, 2, …, 5 s. P90 lies at rank 3.6 of 0…4: 4 + 0.6.
    row = row_of(tmp_path, [turn(f"p{k}", decode_s=float(k)) for k in range(1, 6)])
    assert (row["jct_p50_s"], row["jct_p90_s"]) == (3.0, pytest.approx(4.6))
    assert (row["jct_p95_s"], row["jct_p99_s"]) == (pytest.approx(4.8), pytest.approx(4.96))


def test_hits_are_shares_of_all_prompt_tokens(tmp_path: Path) -> None:
    row = row_of(
        tmp_path,
        [
            turn("p0", prompt_tokens=100),
            turn("p1", prompt_tokens=300, device_hit_tokens=200, dram_hit_tokens=60),
            turn("p2", prompt_tokens=100, ssd_hit_tokens=10),
        ],
    )
    assert (row["device_hit_ratio"], row["dram_hit_ratio"]) == (0.4, 0.12)
    assert (row["ssd_hit_ratio"], row["computed_ratio"]) == (0.02, pytest.approx(0.46))


def test_parts_that_miss_the_time_fail_the_residual_gate(tmp_path: Path) -> None:
    # 10 s in the server, of which 9.8 s are accounted for: 2%.
    row = row_of(tmp_path, [turn(decode_s=9.8, finished_at_s=10.0), turn("p1")])
    assert row["residual"] == pytest.approx(0.02)
    assert row["failed_gates"] == "parts miss a program's time by 2.0%"


def test_a_failed_turn_fails_its_job_and_the_cell(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0"), turn("p1", error="timed out")])
    assert (row["jobs"], row["failed_turns"]) == (1, 1)
    assert row["failed_gates"] == "1 failed turn in 1 job (first: timed out)"


def test_fewer_turns_than_the_workload_has_fail_the_cell(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0")], workload=workload([]) | {"turns": 3})
    assert row["failed_gates"] == "1 of 3 turns were recorded"


def test_a_backlog_that_keeps_pace_is_not_saturated(tmp_path: Path) -> None:
    # One job per second, each waits 2 s: two wait at any time, but for the first seconds.
    row = row_of(tmp_path, [turn(f"p{k:02d}", 0, float(k), queue_s=2.0) for k in range(61)])
    # From 0 to 20 s they wait 39 s in all, from 40 to 60 s they wait 40 s; ⅔ of 61 jobs.
    assert row["backlog_growth"] == pytest.approx((40 / 20 - 39 / 20) / (61 * 2 / 3))
    assert not row["saturated"]


def test_a_backlog_that_grows_with_the_arrivals_is_saturated(tmp_path: Path) -> None:
    # Arrivals 1/s, one served every 2 s in order: job k waits k seconds. At time t, t/2 jobs
    # wait, so the backlog grows by half a job per arrival: g = 1 - 0.5.
    turns = [turn(f"p{k:02d}", 0, float(k), queue_s=float(k)) for k in range(91)]
    row = row_of(tmp_path, turns)
    assert row["backlog_growth"] == pytest.approx(0.5, abs=0.02)
    assert row["saturated"]


def test_time_at_tools_and_in_decode_is_no_backlog(tmp_path: Path) -> None:
    # Jobs in the system grow all along, for none has finished; none of them waits.
    row = row_of(tmp_path, [turn(f"p{k:02d}", 0, float(k), decode_s=500.0) for k in range(60)])
    assert row["backlog_growth"] == pytest.approx(0.0)


def test_a_job_whose_sub_agents_wait_together_waits_once(tmp_path: Path) -> None:
    alone = [turn(f"p{k:02d}", 0, float(k), queue_s=float(k)) for k in range(30)]
    children = [dict(t, program_id=f"{t['program_id']}-sub") for t in alone]
    one = row_of(tmp_path / "one", alone)["backlog_growth"]
    assert row_of(tmp_path / "two", [*alone, *children])["backlog_growth"] == pytest.approx(one)


@pytest.mark.parametrize(
    ("turns", "arrivals"),
    [(11, "poisson"), (60, "closed:8")],
    ids=["too few jobs", "closed loop"],
)
def test_saturation_is_not_judged_where_it_cannot_be(
    tmp_path: Path, turns: int, arrivals: str
) -> None:
    grows = [turn(f"p{k:02d}", 0, float(k), queue_s=float(k)) for k in range(turns)]
    row = row_of(tmp_path, grows, arrivals=arrivals)
    assert row["backlog_growth"] != row["backlog_growth"]
    assert not row["saturated"]


@settings(deadline=None, max_examples=15)
@given(jps=st.floats(0.02, 3.0), seed=st.integers(0, 99))
def test_parts_sum_to_the_jct_and_shares_to_one(
    tmp_path_factory: pytest.TempPathFactory, jps: float, seed: int
) -> None:
    row = row_of(tmp_path_factory.mktemp("run"), simulate(0.5, True, jps, seed, 12))
    assert row["residual"] < 1e-9
    assert 0 <= row["hit_ratio"] <= 1
    assert row["hit_ratio"] + row["computed_ratio"] == pytest.approx(1)
    assert row["jct_p50_s"] <= row["jct_p90_s"] <= row["jct_p99_s"]
