import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.metrics.cells import collect
from reports.metrics.measure import METRICS
from reports.metrics.metric import FLAG, TEXT
from reports.metrics.throughput import usd_per_job
from reports.run_folder.read import load_run
from servers.records.sweep import PriceRecord
from tests.reports.make_run import seal, simulate, turn, workload, write_cell, write_sweep
from tests.sentences import mentions


def row_of(run: Path, turns: Sequence[Mapping[str, Any]], **config: Any) -> dict[str, Any]:
    write_sweep(run, ["fcfs"])
    write_cell(run, "fcfs", turns, **config)
    return collect(load_run(run)).cells.to_dict("records")[0]  # type: ignore[return-value]


def test_each_number_of_a_cell_is_a_declared_metric(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0", 0, 2.0)])
    numbers = {name for name, value in row.items() if type(value) in (int, float)}
    declared = {name for name, metric in METRICS.items() if metric.unit not in (FLAG, TEXT)}
    assert numbers - {"jps", "seed"} == declared & row.keys()


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
    # The root's turns end at 1 and 9; its sub-agent, which no turn waits for, at 12.
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
    # JCTs 1, 2, …, 5 s. P90 is at rank 3.6 of 0…4: 4 + 0.6.
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


def test_parts_that_do_not_sum_to_the_time_fail_the_residual_gate(tmp_path: Path) -> None:
    # The parts account for 9.8 of 10 s in the server, so 2% are missing.
    row = row_of(tmp_path, [turn(decode_s=9.8, finished_at_s=10.0), turn("p1")])
    assert row["residual"] == pytest.approx(0.02)
    assert mentions(row["failed_gates"], "parts", "differ", "2.0%")


def test_a_failed_turn_fails_its_job_and_the_cell(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0"), turn("p1", error="timed out")])
    assert (row["jobs"], row["failed_turns"]) == (1, 1)
    assert mentions(row["failed_gates"], "1 failed turn", "1 job", "timed out")


def test_fewer_turns_than_the_workload_has_fail_the_cell(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0")], workload=workload([]) | {"turns": 3})
    assert row["failed_gates"] == "1 of 3 turns were recorded"


def test_a_backlog_that_keeps_pace_is_not_saturated(tmp_path: Path) -> None:
    # One job per second, each waits 2 s: after the first seconds two are waiting at any time.
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


@pytest.mark.parametrize(("per_arrival", "saturated"), [(0.05, False), (0.15, True)])
def test_one_of_ten_arriving_jobs_in_the_backlog_is_saturation(
    tmp_path: Path, per_arrival: float, saturated: bool
) -> None:
    # Arrivals 1/s, served in order at 1 - g per second: job k starts at k / (1 - g), so that g · t
    # jobs wait at time t.
    wait_s = per_arrival / (1 - per_arrival)
    row = row_of(tmp_path, [turn(f"p{k:03d}", 0, k, queue_s=k * wait_s) for k in range(200)])
    assert row["backlog_growth"] == pytest.approx(per_arrival, abs=0.01)
    assert row["saturated"] == saturated


def test_a_job_whose_sub_agents_wait_at_once_counts_as_one_waiting_job(tmp_path: Path) -> None:
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


def test_throughput_counts_jobs_turns_and_gpus(tmp_path: Path) -> None:
    # Two jobs with three turns from 0 to 7 s, on four GPUs.
    turns = [turn("p0", 0, 0.0), turn("p0", 1, 4.0, gap_s=3.0), turn("p1", 0, 6.0)]
    row = row_of(tmp_path, turns, gpus=4)
    assert row["throughput_turns_per_min"] == pytest.approx(3 / 7 * 60)
    assert row["throughput_jobs_per_h_per_gpu"] == pytest.approx(2 / 7 * 3600 / 4)


NINE_USD = PriceRecord(9.0, "--price")


def test_a_job_has_the_tokens_of_all_its_turns(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0", 0, 0.0), turn("p0", 1, 4.0, gap_s=3.0), turn("p1", 0, 6.0)])
    one = row_of(tmp_path / "one", [turn("p0", 0, 0.0)])
    for name in ("prompt_tokens_per_job", "output_tokens_per_job"):
        assert row[name] == 3 / 2 * one[name]  # two jobs with three equal turns


def test_a_job_costs_its_share_of_the_price_of_all_gpus(tmp_path: Path) -> None:
    # Two jobs in 7 s on two GPUs of 9 USD per hour each: 7 · 2 · 9 / 3600 / 2.
    turns = [turn("p0", 0, 0.0), turn("p1", 0, 6.0)]
    row = row_of(tmp_path, turns, gpus=2)
    assert usd_per_job(NINE_USD, row) == pytest.approx(0.0175)
    assert row["throughput_ratio"] == pytest.approx(2 / 7 / 0.5)


def test_without_a_price_or_a_number_of_gpus_a_job_has_no_cost(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0")])
    assert math.isnan(usd_per_job(NINE_USD, row))
    assert math.isnan(usd_per_job(None, row | {"throughput_jobs_per_h_per_gpu": 2.0}))


def test_a_cell_in_which_every_job_failed_has_no_mean_and_no_cost(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0", error="timed out")], gpus=2)
    assert row["jobs"] == 0
    assert all(math.isnan(row[name]) for name in ("jct_mean_s", "jct_p95_s"))
    assert math.isnan(usd_per_job(NINE_USD, row))
    assert math.isnan(row["jain_index"])


def test_an_unreadable_cell_does_not_hide_the_cells_after_it(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs", "continuum", "infercept"])
    for variant in ("fcfs", "continuum", "infercept"):
        cell = write_cell(tmp_path, variant, [turn("p0")])
        if variant == "fcfs":
            (cell / "turns.jsonl").write_text("{")
            seal(cell)
    results = collect(load_run(tmp_path))
    assert sorted(results.cells["variant"]) == ["continuum", "infercept"]
    assert sorted(results.jobs["variant"]) == ["continuum", "infercept"]
    assert [name for name, _ in results.missing] == ["fcfs_jps0.5_seed1"]


def test_without_a_number_of_gpus_there_is_no_throughput_per_gpu(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0")])
    assert row["throughput_jobs_per_h_per_gpu"] != row["throughput_jobs_per_h_per_gpu"]


def test_ttft_counts_from_sending_and_tpot_from_decode_time(tmp_path: Path) -> None:
    # First tokens after 1, 2 and 3 s; 0.1 and 0.3 s per token; a single token has no TPOT.
    row = row_of(
        tmp_path,
        [
            turn("p0", prefill_s=1.0, first_token_at_s=1.0, output_tokens=11, decode_s=1.0),
            turn("p1", prefill_s=2.0, first_token_at_s=2.0, output_tokens=11, decode_s=3.0),
            turn("p2", prefill_s=3.0, first_token_at_s=3.0, output_tokens=1, decode_s=0.0),
        ],
    )
    assert (row["ttft_mean_s"], row["ttft_p50_s"]) == (2.0, 2.0)
    assert (row["ttft_p95_s"], row["ttft_p99_s"]) == (pytest.approx(2.9), pytest.approx(2.98))
    assert (row["tpot_mean_s"], row["tpot_p95_s"]) == (pytest.approx(0.2), pytest.approx(0.29))
    assert row["tpot_p99_s"] == pytest.approx(0.298)


def test_ttft_does_not_depend_on_when_a_turn_was_sent(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0", 0, 10.0, prefill_s=1.5, first_token_at_s=11.5)])
    assert row["ttft_mean_s"] == 1.5


def test_an_answer_of_two_tokens_has_a_time_per_token(tmp_path: Path) -> None:
    row = row_of(tmp_path, [turn("p0", first_token_at_s=0.5, output_tokens=2, decode_s=0.4)])
    assert row["tpot_mean_s"] == pytest.approx(0.4)


def test_the_hit_bound_is_the_share_of_tokens_that_an_earlier_prompt_had(tmp_path: Path) -> None:
    # Of 400 prompt tokens, 150 were in the previous turn, and 40 in another program's prefix.
    turns = [turn("p0"), turn("p0", 1, 1.0, prompt_tokens=200, kept_tokens=150), turn("p1")]
    shape = workload(turns, shared_prefix_tokens=40)
    assert row_of(tmp_path, turns, workload=shape)["hit_bound_ratio"] == pytest.approx(190 / 400)


def test_fairness_is_one_where_all_jobs_are_slowed_alike(tmp_path: Path) -> None:
    alike = [turn(f"p{k}", decode_s=float(k), queue_s=float(k)) for k in range(1, 4)]
    row = row_of(tmp_path / "alike", alike)
    assert (row["slowdown_mean"], row["jain_index"]) == (2.0, pytest.approx(1.0))
    # One twice as slow as it could be: speeds 1 and ½, (1.5)² / (2 · 1.25).
    row = row_of(tmp_path / "one", [turn("p0"), turn("p1", queue_s=1.0)])
    assert (row["slowdown_mean"], row["jain_index"]) == (1.5, pytest.approx(0.9))


def test_the_steady_window_leaves_out_the_first_and_the_last_fifth_of_the_jobs(
    tmp_path: Path,
) -> None:
    # Ten jobs, one a second, of 1, 2, 4, … 512 s: those of 4 to 128 s remain, 252 s in all. The
    # last arrives at 9 and ends at 521.
    row = row_of(tmp_path, [turn(f"p{k}", 0, float(k), decode_s=2.0**k) for k in range(10)])
    assert row["jct_steady_mean_s"] == pytest.approx(252 / 6)
    assert (row["drain_s"], row["drain_ratio"]) == (512.0, pytest.approx(512 / 521))


@given(jps=st.floats(0.02, 3.0), seed=st.integers(0, 99))
def test_parts_sum_to_the_jct_and_shares_to_one(
    tmp_path_factory: pytest.TempPathFactory, jps: float, seed: int
) -> None:
    row = row_of(tmp_path_factory.mktemp("run"), simulate(0.5, True, jps, seed, 12))
    assert row["residual"] < 1e-9
    assert 0 <= row["hit_ratio"] <= 1
    assert row["hit_ratio"] + row["computed_ratio"] == pytest.approx(1)
    assert row["jct_p50_s"] <= row["jct_p90_s"] <= row["jct_p99_s"]
