"""Requests beside the jobs in metrics, the answer and the page, worked by hand."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pytest
from rich.console import Console
from test_fairness import GAIN, POINTS, point

from reports.answer.starvation import starvation
from reports.metrics.background import BACKGROUND
from reports.metrics.cells import Results, collect
from reports.page.tables import background
from reports.page.write import write
from reports.run_folder.read import load_run
from reports.statistics.points import Comparison, points
from tests.reports.make_run import seal, turn, write_cell, write_sweep
from tests.sentences import mentions

OFFERED = {"name": "chat.jsonl", "requests_per_s": 0.5, "requests": 9}
JOBS = [turn("p0", at_s=10.0, decode_s=20.0), turn("p1", at_s=20.0, decode_s=10.0)]
"""Jobs from 10 to 30 s, which is the time of the cell."""


def request(name: str, at_s: float, first_s: float, end_s: float, **fields: Any) -> dict[str, Any]:
    id = f"background/{name}"
    return turn(id, at_s=at_s, first_token_at_s=first_s, finished_at_s=end_s, background=True,
                decode_s=0.0, **fields)  # fmt: skip


def row_of(
    folder: Path,
    requests: Sequence[dict[str, Any]],
    unfinished: Sequence[Sequence[float | None]] = (),
) -> dict[str, Any]:
    write_sweep(folder, ["fcfs"], background=OFFERED)
    cell = write_cell(folder, "fcfs", [*JOBS, *requests], background=OFFERED,
                      workload={"name": "w", "turns": 2})  # fmt: skip
    done = json.loads((cell / "done.json").read_text())
    done |= {"finished_programs": 2, "background": {"until_s": 30.0, "unfinished": unfinished}}
    (cell / "done.json").write_bytes(orjson.dumps(done))
    seal(cell)
    (row,) = collect(load_run(folder)).cells.to_dict("records")
    return row  # type: ignore[return-value]


def test_requests_of_the_measured_time_have_latencies_and_a_throughput(tmp_path: Path) -> None:
    row = row_of(
        tmp_path,
        [
            request("before", 9.0, 10.0, 12.0),  # is due before the time, and finishes in it
            request("a", 10.0, 11.0, 14.0),
            request("b", 20.0, 23.0, 26.0),
        ],
        [[22.0, 24.0], [25.0, None], [9.5, None]],  # of which the last was due before
    )
    # TTFT: 1, 3, 2, and 5 s so far. Latency: 4, 6, and 8 and 5 s so far.
    assert row["background_ttft_mean_s"] == pytest.approx((1 + 3 + 2 + 5) / 4)
    assert row["background_latency_mean_s"] == pytest.approx((4 + 6 + 8 + 5) / 4)
    assert row["background_latency_p95_s"] == pytest.approx(6 + 0.85 * 2)  # at rank 2.85 of 0 … 3
    assert (row["background_requests"], row["background_unfinished"]) == (4, 2)
    assert row["background_throughput_per_s"] == pytest.approx(3 / 20)
    assert row["background_served_ratio"] == pytest.approx(3 / 4)


def test_requests_are_no_jobs(tmp_path: Path) -> None:
    row = row_of(tmp_path, [request("a", 10.0, 11.0, 500.0)])
    assert (row["jobs"], row["jct_mean_s"], row["ttft_mean_s"]) == (
        2,
        15.0,
        pytest.approx(math.nan, nan_ok=True),
    )
    assert row["throughput_jobs_per_s"] == pytest.approx(2 / 20)
    assert row["throughput_turns_per_min"] == pytest.approx(2 / 20 * 60)
    assert row["failed_gates"] == ""


def test_a_request_that_failed_fails_a_gate_of_its_own(tmp_path: Path) -> None:
    row = row_of(tmp_path, [request("a", 10.0, 11.0, 12.0, error="refused")])
    assert row["failed_turns"] == 0
    assert row["background_failed"] == 1
    assert mentions(row["failed_gates"], "1 failed request", "background", "refused")


def test_a_cell_without_a_background_has_none_of_the_columns(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    write_cell(tmp_path, "fcfs", JOBS)
    (found,) = points(collect(load_run(tmp_path)), "fcfs")
    assert not found.has_background
    assert background([found], found.load) is None


def test_the_answer_and_the_page_have_the_background(tmp_path: Path) -> None:
    row_of(tmp_path, [request("a", 10.0, 11.0, 14.0)])
    report = write(tmp_path)
    answer = json.loads((tmp_path / "answer.json").read_text())
    (found,) = answer["points"]
    assert {name: found[name] for name in BACKGROUND.columns[:-1]} == {
        "background_ttft_mean_s": 1.0, "background_ttft_p95_s": 1.0,
        "background_latency_mean_s": 4.0, "background_latency_p95_s": 4.0,
        "background_requests": 1.0, "background_unfinished": 0.0,
        "background_served_ratio": 1.0, "background_throughput_per_s": 1 / 20,
    }  # fmt: skip
    assert answer["provenance"]["background"] == OFFERED
    assert "alongside 0.5 requests/s of chat.jsonl" in answer["provenance"]["sentence"]
    html = report.path.read_text()
    assert '<h2 id="background">Background</h2>' in html
    assert "<td>4.00 s</td>" in html
    shown = background(report.points, report.result.load)
    assert shown is not None
    assert list(zip(shown.heads[1:], [cell.text for cell in shown.rows[0].cells], strict=True)) == [
        ("Mean TTFT", "1.00 s"), ("P95 TTFT", "1.00 s"),
        ("Mean latency", "4.00 s"), ("P95 latency", "4.00 s"),
        ("Served", "100%"), ("Requests/s", "0.05"),
    ]  # fmt: skip


def cells(**latency_s: Sequence[float]) -> Results:
    rows = [
        {"variant": variant, "load": "0.5 jobs/s", "seed": seed, "jct_bound_s": math.nan,
         "jct_p99_s": 1.0, "queue_max_s": 1.0,
         "background_latency_mean_s": value, "background_latency_p95_s": 1.0}
        for variant, values in latency_s.items() for seed, value in enumerate(values, 1)
    ]  # fmt: skip
    return Results(pd.DataFrame(rows), pd.DataFrame(), ())


def served(ratio: float, requests: float = 500.0) -> dict[str, float]:
    return {"background_served_ratio": ratio, "background_requests": requests}


def beside(
    against: Comparison | None = GAIN, saturated: bool = False, ratio: float = 1.0
) -> list[Any]:
    fast = replace(POINTS[1], against=against, saturated=saturated, pooled=served(ratio))
    return [replace(POINTS[0], pooled=served(1.0)), fast]


@pytest.mark.parametrize("saturated", [False, True])
def test_a_policy_that_gains_by_starving_the_background_is_named(saturated: bool) -> None:
    results = cells(fcfs=[2, 3, 4], fast=[8.1, 12, 15.9])
    (caveat,) = starvation(beside(saturated=saturated), results, "fcfs")
    assert mentions(caveat, "fcfs", "background", "fast at 0.5 jobs/s", "4.0x", "95% CI")


@pytest.mark.parametrize(
    "latency_s", [[2.04, 3.06, 4.08], [1.0, 12.0, 4.0], [1.0, 1.5, 2.0], [8.0, 12.0]]
)
def test_it_is_not_named_without_a_significant_loss(latency_s: list[float]) -> None:
    assert starvation(beside(), cells(fcfs=[2, 3, 4], fast=latency_s), "fcfs") == []


def test_a_policy_that_does_not_serve_the_background_is_named_even_with_one_seed() -> None:
    slow = beside(against=None, ratio=0.4)
    (caveat,) = starvation(slow, cells(fcfs=[2], fast=[8]), "fcfs")
    assert caveat.startswith("Background requests starve")
    assert caveat.endswith(": fast at 0.5 jobs/s (40%).")
    few = [replace(p, pooled=served(0.4, requests=20)) for p in slow]
    assert starvation(few, cells(fcfs=[2], fast=[8]), "fcfs") == []


def test_a_terminal_shows_the_background_below_the_jobs(tmp_path: Path) -> None:
    # TTFT of 1 and 3 s; P95 at rank 0.95 of 0 … 1.
    row_of(tmp_path, [request("a", 10.0, 11.0, 14.0), request("b", 12.0, 15.0, 16.0)])
    tables = write(tmp_path).tables(full=False)
    console = Console(file=io.StringIO(), width=80)
    console.print(tables[-1])
    head, line = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert re.split(r" {2,}", head.rstrip()) == [
        "load", "background with", "requests", "served", "mean TTFT", "P95 TTFT",
    ]  # fmt: skip
    assert re.split(r" {2,}", line.rstrip())[1:] == ["fcfs", "2", "100%", "2.00 s", "2.90 s"]


def test_a_point_of_fairness_without_a_background_is_judged_by_jobs_only() -> None:
    assert (
        starvation([POINTS[0], point("fast", 5.0, GAIN)], cells(fcfs=[1], fast=[9]), "fcfs") == []
    )
