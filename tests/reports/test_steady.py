"""Metrics of cells whose jobs are a stream, from the measured jobs only."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from reports import write_report
from reports.exports.write import export
from reports.metrics.cells import Results, collect
from reports.metrics.steady import grows_beyond_chance
from reports.run_folder.read import load_run
from tests.reports.make_run import seal, turn, write_cell, write_lines, write_sweep
from tests.sentences import mentions

IDLE = {"mean": 1.0, "percentiles": [1.0] * 99}


def stream_turn(job: int, at_s: float, decode_s: float, **fields: Any) -> dict[str, Any]:
    return turn(f"p{job}", 0, at_s, decode_s=decode_s, job_index=job, **fields)


def steady_cell(
    run: Path,
    turns: Sequence[Mapping[str, Any]],
    window: Mapping[str, Any],
    variant: str = "fcfs",
    jps: float = 1.0,
    seed: int = 1,
    unstable: str | None = None,
    growth: float = 0.05,
    **config: Any,
) -> Path:
    folder = write_cell(
        run, variant, turns, jps=jps, seed=seed, steady_state=True, done=False, **config
    )
    done = {
        "window": {"first_job": 2, "jobs": 4, "from_s": 2.0, "to_s": 6.0} | window,
        "steady": unstable is None, "unstable": unstable, "idle_times_s": {"jct": IDLE},
        "jobs_in_system": {"growth": growth},
        "finished_programs": 8, "failed_turns": 0, "virtual_s": 20.0, "usage": [],
    }  # fmt: skip
    (folder / "done.json").write_bytes(orjson.dumps(done))
    seal(folder)
    return folder


TURNS = [stream_turn(job, float(job), 0.5 if job < 2 else 2.0) for job in range(8)]
"""One job per second. Jobs 0 and 1 are the warm-up and take 0.5 s, jobs 2 … 5 are measured."""
WINDOW = {"finished_jobs": 3, "shared_prefix_tokens": 40}
"""Jobs 2, 3 and 4 would end at 4, 5 and 6 s; the number is that of the replay."""


def row_of(run: Path, **config: Any) -> dict[str, Any]:
    write_sweep(run, ["fcfs"])
    steady_cell(run, TURNS, WINDOW, **config)
    return collect(load_run(run)).cells.to_dict("records")[0]  # type: ignore[return-value]


def test_only_measured_jobs_count(tmp_path: Path) -> None:
    row = row_of(tmp_path)
    assert (row["jobs"], row["jct_mean_s"], row["jct_steady_mean_s"]) == (4, 2.0, 2.0)
    assert (row["unstable"], row["saturated"], row["failed_gates"]) == ("", False, "")


def test_throughput_is_what_finishes_during_the_window(tmp_path: Path) -> None:
    row = row_of(tmp_path, gpus=2)
    assert row["throughput_jobs_per_s"] == pytest.approx(3 / 4)
    assert row["throughput_ratio"] == pytest.approx(0.75)
    # Turns of the jobs 2 and 3 end at 4 and 5 s; that of job 4 at 6 s, when the window is over.
    assert row["throughput_turns_per_min"] == pytest.approx(2 / 4 * 60)
    assert row["throughput_jobs_per_h_per_gpu"] == pytest.approx(3600 / 2 * 3 / 4)


def test_there_is_no_drain_and_the_growth_is_that_of_the_replay(tmp_path: Path) -> None:
    row = row_of(tmp_path)
    assert row["backlog_growth"] == 0.05
    assert row["drain_s"] != row["drain_s"]  # NaN


def test_shared_prefixes_are_those_of_the_window(tmp_path: Path) -> None:
    # 40 tokens of four prompts of 100 tokens; the workload's own number is of its recorded jobs.
    assert row_of(tmp_path)["hit_bound_ratio"] == pytest.approx(0.1)


def test_pins_count_during_the_window(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    folder = steady_cell(tmp_path, TURNS, WINDOW, profile={"kv_blocks": 100})
    common = {"turn": 0, "program_id": "p2"}
    write_lines(folder / "engine.jsonl", [
        {"t": 1.0, "event": "pinned", "blocks": 10, "ttl_s": 1.0, **common},
        {"t": 3.0, "event": "unpinned", "reason": "reused", **common},
        {"t": 5.0, "event": "pinned", "blocks": 10, "ttl_s": 9.0, **common},
    ])  # fmt: skip
    row = collect(load_run(tmp_path)).cells.to_dict("records")[0]
    # 10 blocks from 2 to 3 s and from 5 to 6 s, the second never reused; of 100 blocks for 4 s.
    assert (row["pin_block_s"], row["pin_unused_block_s"]) == (20.0, 10.0)
    assert row["pinned_ratio"] == pytest.approx(20 / 400)


def test_a_stable_cell_without_all_measured_jobs_fails_a_gate(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    steady_cell(tmp_path, TURNS[:5], WINDOW)
    (gates,) = collect(load_run(tmp_path)).failed_gates.values()
    assert gates == "3 of 4 measured jobs were recorded"


def unstable_run(run: Path) -> Results:
    """fcfs is unstable at 2 jobs/s, and seems stable at 3 jobs/s."""
    write_sweep(run, ["fcfs", "continuum"], (1.0, 2.0, 3.0))
    for variant in ("fcfs", "continuum"):
        for jps in (1.0, 2.0, 3.0):
            ended = (variant, jps) == ("fcfs", 2.0)
            window = WINDOW | ({"to_s": None, "finished_jobs": None} if ended else {})
            reason = "61 jobs in the system, more than 60" if ended else None
            steady_cell(run, TURNS, window, variant, jps, unstable=reason)
    return collect(load_run(run))


def test_an_unstable_cell_has_no_jct(tmp_path: Path) -> None:
    cells = unstable_run(tmp_path).cells.set_index("cell")
    row = cells.loc["fcfs_jps2.0_seed1"]
    assert row["unstable"] == "61 jobs in the system, more than 60"
    assert row["saturated"]
    assert (row["jobs"], row["failed_gates"]) == (0, "")
    for name in ("jct_mean_s", "jct_p95_s", "throughput_jobs_per_s", "pinned_ratio"):
        assert row[name] != row[name]  # NaN


def test_a_rate_above_an_unstable_one_is_unstable(tmp_path: Path) -> None:
    results = unstable_run(tmp_path)
    cells = results.cells.set_index("cell")
    assert cells["unstable"].to_dict() == {
        "fcfs_jps1.0_seed1": "",
        "fcfs_jps2.0_seed1": "61 jobs in the system, more than 60",
        "fcfs_jps3.0_seed1": "unstable at 2 jobs/s",
        **{f"continuum_jps{jps}_seed1": "" for jps in (1.0, 2.0, 3.0)},
    }
    assert set(results.jobs["cell"]) == set(cells.index[cells["unstable"] == ""])


def test_another_seed_can_be_stable_at_that_rate(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"], (1.0, 2.0), (1, 2))
    for jps, seed, reason in ((1.0, 1, "grows"), (1.0, 2, None), (2.0, 1, None), (2.0, 2, None)):
        steady_cell(tmp_path, TURNS, WINDOW, jps=jps, seed=seed, unstable=reason)
    cells = collect(load_run(tmp_path)).cells
    unstable = cells[cells["unstable"] != ""]
    assert set(unstable["seed"]) == {1}
    assert len(unstable) == 2


def test_a_report_says_which_cells_are_unstable(tmp_path: Path) -> None:
    unstable_run(tmp_path)
    report = write_report(tmp_path)
    page = report.path.read_text()
    for title in ("61 jobs in the system, more than 60", "unstable at 2 jobs/s"):
        assert page.count(f'badge warn" title="{title}">') == 1
    rows = json.loads((tmp_path / "cells.json").read_text())
    assert {row["cell"]: row["jct_mean_s"] for row in rows}["fcfs_jps2.0_seed1"] is None
    header, *lines = (tmp_path / "cells.csv").read_text().splitlines()
    unstable = header.split(",").index("unstable")
    assert sum('"61 jobs in the system, more than 60"' in line for line in lines) == 1
    assert unstable > 0


def test_a_run_without_a_stable_cell_has_a_report(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    steady_cell(tmp_path, TURNS[:1], WINDOW | {"from_s": None, "to_s": None}, unstable="grows")
    report = write_report(tmp_path)
    assert mentions(report.answer[0], "No scheduler", "steady state", "lower rates")
    assert "unstable" in report.path.read_text()


def test_the_table_names_unstable_variants(tmp_path: Path) -> None:
    unstable_run(tmp_path)
    report = write_report(tmp_path)
    shown = StringIO()
    Console(file=shown, width=200).print(report.table)
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert sum(line[-6:] == [*["–"] * 5, "unstable"] for line in lines) == 2
    assert sum("unstable" in line for line in lines) == 2
    assert report.path.read_text().count('no steady state">unstable<') == 2


@pytest.mark.parametrize(
    ("growth", "jobs", "grows"),
    [(0.21, 133, True), (0.19, 133, False), (0.09, 200, False), (0.07, 9388, True),
     (math.nan, 9388, False)],
)  # fmt: skip
def test_a_backlog_grows_beyond_chance_by_two_deviations_of_the_arrivals(
    growth: float, jobs: int, grows: bool
) -> None:
    """100 of 133 jobs arrive between the middles of the outer quarters, give or take 10."""
    assert grows_beyond_chance(growth, jobs) is grows


def test_a_growing_backlog_of_a_stable_variant_is_a_caveat(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs", "las"], seeds=[1, 2])
    for seed, growth in ((1, 0.0), (2, 1.2)):  # 1.2 of 3 jobs are 3.6, and 2√3 = 3.46.
        steady_cell(tmp_path, TURNS, WINDOW, seed=seed, growth=growth)
    steady_cell(tmp_path, TURNS, WINDOW, "las", growth=2.0)
    steady_cell(tmp_path, TURNS, WINDOW, "las", seed=2, unstable="the queue grows")
    (caveat,) = [s for s in write_report(tmp_path).answer if "backlog grows" in s]
    assert ": fcfs at 1 jobs/s. " in caveat
    assert mentions(caveat, "120%", "fcfs_jps1.0_seed2.")


def test_exported_tables_mark_the_measured_jobs(tmp_path: Path) -> None:
    """Jobs 2 … 5 are measured. A cell that is unstable at a lower rate measures none."""
    run = write_sweep(tmp_path / "run", ["fcfs"])
    for jps, unstable in ((1.0, None), (2.0, "the queue grows"), (3.0, None)):
        steady_cell(run, TURNS, WINDOW, jps=jps, unstable=unstable)
    export(run, "csv", tmp_path)
    measured: dict[str, list[tuple[str, str]]] = {}
    for name in ("jobs", "turns"):
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        measured[name] = [(row["jps"], row["job_id"]) for row in rows if row["measured"] == "true"]
        assert {row["measured"] for row in rows} == {"true", "false"}
    assert measured["jobs"] == measured["turns"] == [("1.0", f"p{job}") for job in range(2, 6)]


def test_variants_that_tie_are_named_although_the_baseline_has_no_steady_state(
    tmp_path: Path,
) -> None:
    """With three seeds las takes 1%, -1% and 2% longer than continuum, and autellix 100%."""
    names = ("fcfs", "continuum", "las", "autellix")
    write_sweep(tmp_path, names, jps=[1.0], seeds=[1, 2, 3], steady_state=True)
    factors = {"continuum": (1.0,) * 3, "las": (1.01, 0.99, 1.02), "autellix": (2.0, 2.01, 2.0)}
    for seed in (1, 2, 3):
        steady_cell(tmp_path, TURNS, WINDOW, seed=seed, unstable="the queue grew")
        for name, of_seeds in factors.items():
            turns = [
                stream_turn(job, float(job), 2.0 * seed * of_seeds[seed - 1]) for job in range(8)
            ]
            steady_cell(tmp_path, turns, WINDOW, variant=name, seed=seed)
    answer = write_report(tmp_path).answer
    assert not [sentence for sentence in answer if sentence.startswith("Short run")]
    tie = "Two schedulers", "3 seeds", "continuum and las", "4.00 s", "1 jobs/s"
    assert mentions(answer[0], *tie, "fcfs has no steady state")


@pytest.mark.parametrize(
    ("seeds", "caveat"),
    [
        ([1], "One seed: there are no intervals, and no difference was tested."),
        ([1, 2], "Two seeds: the intervals over seeds are so wide that few differences are"
                 " significant."),
    ],
)  # fmt: skip
def test_the_intervals_of_one_or_two_seeds_of_a_steady_state_come_with_a_caveat(
    tmp_path: Path, seeds: list[int], caveat: str
) -> None:
    write_sweep(tmp_path, ["fcfs", "continuum"], jps=[1.0], seeds=seeds, steady_state=True)
    for seed in seeds:
        for name in ("fcfs", "continuum"):
            steady_cell(tmp_path, TURNS, WINDOW, variant=name, seed=seed)
    answer = write_report(tmp_path).answer
    assert f"{caveat} Use at least three seeds (--seeds 1..5)." in answer
