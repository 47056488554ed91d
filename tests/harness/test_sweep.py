"""Sweeps end to end on a small question: the same bytes however they come about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small import contents, small_question

from harness.cell import Work, run_cell
from harness.pool import Tick
from harness.question import Cell
from harness.sweep import default_folder, run_sweep
from servers.sim import Limits


def fail_at_continuum(work: Work, cell: Cell, tick: Tick) -> None:
    if cell.variant == "continuum":
        raise RuntimeError("no such luck")
    run_cell(work, cell, tick)


def never(_work: Work, cell: Cell, _tick: Tick) -> None:
    raise AssertionError(f"{cell.name} ran twice")


def test_a_sweep_leaves_the_files_that_the_document_names(tmp_path: Path) -> None:
    outcome = run_sweep(small_question(), tmp_path / "run", workers=1)
    assert (outcome.cells, outcome.found_done, outcome.failed) == (2, 0, {})
    cell = {"cell.json", "turns.jsonl", "engine.jsonl", "done.json"}
    assert set(contents(tmp_path / "run")) == {
        "sweep.json",
        *(f"fcfs_jps0.5_seed1/{name}" for name in cell),
        *(f"continuum_jps0.5_seed1/{name}" for name in cell),
    }
    done = json.loads((tmp_path / "run/fcfs_jps0.5_seed1/done.json").read_text())
    assert (done["finished_programs"], done["failed_turns"]) == (3, 0)
    turns = (tmp_path / "run/fcfs_jps0.5_seed1/turns.jsonl").read_text().splitlines()
    assert len(turns) == 3 * 3


def test_the_number_of_workers_changes_no_byte(tmp_path: Path) -> None:
    question = small_question("fcfs,continuum,infercept+", (0.2, 1.0))
    for workers in (1, 2):
        run_sweep(question, tmp_path / str(workers), workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_every_variant_sees_the_same_arrivals(tmp_path: Path) -> None:
    run_sweep(small_question(), tmp_path / "run", workers=2)
    fcfs, continuum = (
        first_turns_s(tmp_path / f"run/{variant}_jps0.5_seed1") for variant in ("fcfs", "continuum")
    )
    assert len(fcfs) == 3
    assert fcfs == continuum


def first_turns_s(cell: Path) -> list[float]:
    turns = [json.loads(line) for line in (cell / "turns.jsonl").read_text().splitlines()]
    return sorted(turn["scheduled_at_s"] for turn in turns if turn["turn"] == 0)


def test_a_finished_cell_is_never_run_twice(tmp_path: Path) -> None:
    run_sweep(small_question(), tmp_path / "run", workers=1)
    outcome = run_sweep(small_question(), tmp_path / "run", workers=1, run=never)
    assert (outcome.cells, outcome.found_done, outcome.failed) == (2, 2, {})


def test_a_failed_cell_is_marked_the_others_run_and_the_next_time_it_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    outcome = run_sweep(small_question(), folder, workers=1, run=fail_at_continuum)
    assert list(outcome.failed) == ["continuum_jps0.5_seed1"]
    failed = json.loads((folder / "continuum_jps0.5_seed1/failed.json").read_text())
    assert failed["error"] == "RuntimeError: no such luck"
    assert "failed: continuum_jps0.5_seed1: RuntimeError: no such luck" in capsys.readouterr().err
    assert (folder / "fcfs_jps0.5_seed1/done.json").exists()

    again = run_sweep(small_question(), folder, workers=1)
    assert (again.found_done, again.failed) == (1, {})
    run_sweep(small_question(), tmp_path / "straight", workers=1)
    assert contents(folder) == contents(tmp_path / "straight")


def test_stop_on_error_leaves_the_rest(tmp_path: Path) -> None:
    question = small_question("continuum,fcfs")
    outcome = run_sweep(
        question, tmp_path / "run", workers=1, stop_on_error=True, run=fail_at_continuum
    )
    assert list(outcome.failed) == ["continuum_jps0.5_seed1"]
    assert not (tmp_path / "run/fcfs_jps0.5_seed1").exists()


def test_another_question_is_refused_by_the_field_that_differs(tmp_path: Path) -> None:
    run_sweep(small_question(), tmp_path / "run", workers=1)
    before = contents(tmp_path / "run")
    for other, what in [
        (small_question(jps=(0.5, 0.7)), r"jps is \[0.5\], now \[0.5, 0.7\]"),
        (small_question("fcfs"), "policies fcfs,continuum, now fcfs"),
        (small_question(limits=Limits(64)), "limits.max_num_seqs is 256, now 64"),
        (replace(small_question(), code_sha256="abc"), "begun with other code of Turnstile"),
    ]:
        with pytest.raises(ValueError, match=what):
            run_sweep(other, tmp_path / "run", workers=1, run=never)
    assert contents(tmp_path / "run") == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds files, but no run"):
        run_sweep(small_question(), tmp_path, workers=1)
    with pytest.raises(ValueError, match="is a file"):
        run_sweep(small_question(), tmp_path / "notes.txt", workers=1)


def test_the_default_folder_is_the_same_for_the_same_question_only() -> None:
    assert default_folder(small_question()) == default_folder(small_question())
    assert default_folder(small_question()) != default_folder(small_question(jps=(0.7,)))


SLOW = """
import sys, time
from dataclasses import replace
from pathlib import Path
from harness.cell import run_cell
from harness.sweep import run_sweep
from small import small_question

def slow(work, cell, tick):
    run_cell(work, cell, lambda turns: None)
    time.sleep(0.05)

if __name__ == "__main__":
    run_sweep(small_question("fcfs,continuum,autellix", (0.2, 0.5, 1.0)), Path(sys.argv[1]),
              workers=2, run=slow)
"""


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    command = [sys.executable, str(script), str(tmp_path / "killed")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for delay_s in (0.0, 0.03, 0.11):
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
            wait_for_progress(tmp_path / "killed")
            time.sleep(delay_s)
            process.send_signal(signal.SIGKILL)
    question = small_question("fcfs,continuum,autellix", (0.2, 0.5, 1.0))
    outcome = run_sweep(question, tmp_path / "killed", workers=2)
    assert outcome.failed == {}
    run_sweep(question, tmp_path / "straight", workers=2)
    killed, straight = contents(tmp_path / "killed"), contents(tmp_path / "straight")
    # Who asked, and how, is not part of the answer.
    for files in (killed, straight):
        sweep = json.loads(files.pop("sweep.json"))
        assert sweep["made_by"].pop("argv")
    assert killed == straight


def wait_for_progress(folder: Path) -> None:
    """Until one more cell has begun than before."""
    begun = len(list(folder.glob("*/cell.json")))
    deadline_s = time.monotonic() + 20
    while len(list(folder.glob("*/cell.json"))) <= begun:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
