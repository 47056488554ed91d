"""Jobs that a stall of the client machine hit are left out, the same ones for all policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.metrics.cells import collect, failed_gates_of
from reports.page.write import write
from reports.run_folder.read import load_run
from tests.reports.make_run import turn, workload, write_cell, write_sweep
from tests.sentences import mentions

STALL = [10.0, 12.0]
"""The client did not run from 10 to 12 s."""
JOBS = 40


def jobs(**of_stalled: Any) -> list[dict[str, Any]]:
    """Return 40 jobs of one turn of 4 s, due each 1 s from 20 s on; the first as given."""
    return [turn("p0", **of_stalled)] + [
        turn(f"p{k}", at_s=20.0 + k, decode_s=4.0) for k in range(1, JOBS)
    ]


LATE = {"at_s": 10.5, "sent_at_s": 12.0, "decode_s": 4.0}
"""Due in the stall, and sent 1.5 s late: 0.9% of the JCTs, which are 40 × 4 s + 1.5 s."""


def cell(run: Path, variant: str, turns: list[dict[str, Any]], stalls: list[Any]) -> Path:
    return write_cell(
        run, variant, turns, engine="vllm", profile=None, finished={"client_stalls": stalls}
    )


def rows(run: Path) -> dict[str, dict[str, Any]]:
    return {row["variant"]: row for row in collect(load_run(run)).cells.to_dict("records")}


def test_a_job_sent_late_in_a_stall_is_left_out_of_all_policies(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs", "continuum"])
    late = jobs(**LATE | {"sent_at_s": 14.0})  # 3.5 s: 2.1% of the JCTs
    cell(tmp_path, "fcfs", late, [[10.0, 14.0]])
    cell(tmp_path, "continuum", jobs(at_s=10.5, decode_s=44.0), [])
    found = rows(tmp_path)
    assert {name: row["failed_gates"] for name, row in found.items()} == {
        "fcfs": "", "continuum": "",
    }  # fmt: skip
    assert {name: (row["jobs"], row["stalled_jobs"]) for name, row in found.items()} == {
        "fcfs": (39, 1), "continuum": (39, 1),
    }  # fmt: skip
    assert [row["jct_mean_s"] for row in found.values()] == [4.0, 4.0]
    results = collect(load_run(tmp_path))
    assert "p0" not in results.jobs["job_id"].tolist()
    assert failed_gates_of(tmp_path / "fcfs_jps0.5_seed1") == ""


def test_lateness_outside_of_stalls_fails_the_cell_as_before(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    cell(tmp_path, "fcfs", jobs(at_s=15.0, sent_at_s=18.5, decode_s=4.0), [STALL])
    # 3.5 s of 39 × 4 s + 7.5 s.
    assert mentions(rows(tmp_path)["fcfs"]["failed_gates"], "2.1% of the JCT", "1 stall")


@pytest.mark.parametrize(
    ("stalled", "counted", "gate"),
    [(2, JOBS - 2, ""), (3, JOBS, "client lateness is 2.7%")],
)
def test_more_than_a_twentieth_of_the_jobs_is_not_left_out(
    tmp_path: Path, stalled: int, counted: int, gate: str
) -> None:
    write_sweep(tmp_path, ["fcfs"])
    turns = jobs(**LATE)
    turns[:stalled] = [turn(f"p{k}", **LATE) for k in range(stalled)]
    cell(tmp_path, "fcfs", turns, [STALL])
    row = rows(tmp_path)["fcfs"]
    assert (row["jobs"], row["stalled_jobs"]) == (counted, JOBS - counted)
    # 3 × 1.5 s of 40 × 4 s + 4.5 s is 2.7%.
    assert row["failed_gates"].partition(" of the JCT")[0] == gate


@pytest.mark.parametrize(
    ("fields", "hit"),
    [
        ({"decode_s": 4.0}, True),  # 8 to 12 s: its end was read when the stall ended
        ({"decode_s": 6.0, "first_token_at_s": 12.0}, True),
        ({"decode_s": 6.0, "first_token_at_s": 9.0}, False),  # under way, but nothing was read
        ({"decode_s": 1.0}, False),
    ],
)
def test_a_token_that_was_read_at_the_end_of_a_stall_counts_as_hit(
    tmp_path: Path, fields: dict[str, Any], hit: bool
) -> None:
    write_sweep(tmp_path, ["fcfs"])
    cell(tmp_path, "fcfs", jobs(at_s=8.0, **fields), [STALL])
    assert rows(tmp_path)["fcfs"]["stalled_jobs"] == hit


def test_the_report_counts_the_jobs_that_are_left_out(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"], engine="vllm", workload=workload(jobs()))
    cell(tmp_path, "fcfs", jobs(**LATE), [STALL])
    (caveat,) = [c for c in write(tmp_path).result.caveats if "stalled" in c]
    assert mentions(caveat, "1 of 40", "fcfs_jps0.5_seed1.")
