"""`bench list runs` shows runs by load and date, and `bench open` finds the last report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import bench
from small import run_sweep, small_plan

from reports.run_folder.find import find_runs, newest_report
from tests.reports.make_run import write_sweep

HOUR_S = 3600.0
NOON_S = 1_750_000_000.0


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def make(folder: Path, workload: str, hours: float, *, report: bool = False) -> None:
    plan = small_plan("fcfs")
    load = replace(plan.workload, name=workload)
    run_sweep(replace(plan, workload=load), folder, workers=1, reuse=False)
    written_s = NOON_S + hours * HOUR_S
    for done in folder.glob("*/done.json"):
        os.utime(done, (written_s, written_s))
    if report:
        (folder / "report.html").write_text("<p>")
        os.utime(folder / "report.html", (written_s, written_s))


def test_runs_are_grouped_by_load_with_the_newest_first(runs: Path) -> None:
    make(runs / "old", "swe-bench", 1)
    make(runs / "other", "bfcl", 2)
    make(runs / "nested/new", "swe-bench", 3)
    assert [run.folder.name for run in find_runs(runs)] == ["new", "old", "other"]


def test_a_run_is_shown_by_date_cells_folder_load_and_plan(runs: Path) -> None:
    make(runs / "old", "swe-bench", 0)
    shown = bench("list", "runs")[1]
    assert "1/1 cells" in shown
    assert "runs/old" in shown
    assert "swe-bench, llama-3.1-8b on a100-80g, sim" in shown
    assert "fcfs; 0.5 jobs/s; seed 1" in shown


def test_limits_of_the_engine_are_shown_unless_they_have_their_defaults(runs: Path) -> None:
    limits = {"max_num_seqs": 64, "step_tokens": 2048, "admission": "first-chunk"}
    limits |= {"long_prefill": 512, "long_prefill_adaptive": True, "watermark": 0.1}
    write_sweep(runs / "tuned", ["fcfs"], limits=limits)
    (run,) = find_runs(runs)
    assert run.load.endswith(
        ", max num seqs 64, admission first-chunk, long prefill 512, long prefill adaptive, "
        "watermark 0.1"
    )


def test_a_damaged_run_does_not_hide_the_others(runs: Path) -> None:
    make(runs / "old", "swe-bench", 0)
    (runs / "torn").mkdir()
    (runs / "torn/sweep.json").write_text("{")
    assert [run.folder.name for run in find_runs(runs)] == ["old"]
    code, out, err = bench("list", "runs")
    assert code == 0
    assert "runs/old" in out
    assert "damaged: runs/torn/sweep.json: not JSON" in err


def test_bench_open_opens_the_newest_report(runs: Path) -> None:
    make(runs / "old", "swe-bench", 1, report=True)
    make(runs / "new", "swe-bench", 2, report=True)
    make(runs / "without", "swe-bench", 3)
    assert newest_report(runs) == runs / "new/report.html"
    assert bench("open")[:2] == (0, "runs/new/report.html\n")
    assert bench("open", "runs/old")[:2] == (0, "runs/old/report.html\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "runs/ contains no report; create one with: bench sweep"),
        (("runs/none",), "runs/none: not a run folder; bench list runs lists them"),
        (("runs/without",), "runs/without: contains no report; write it with: bench report"),
    ],
)
def test_a_missing_report_is_an_error_with_the_remedy(
    runs: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    make(runs / "without", "swe-bench", 3)
    code, _, err = bench("open", *arguments)
    assert code == 2
    assert complaint in err
