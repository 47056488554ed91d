"""`bench export` as users run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.in_process import bench


@pytest.mark.usefixtures("run")
def test_paths_are_printed_and_files_are_written_into_the_run() -> None:
    code, out, err = bench("export", "run", "--format", "csv")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["run/export/turns.csv", "run/export/jobs.csv"]
    code, out, _ = bench("export", "run", "--format", "chrome", "--out", "there")
    assert out.splitlines()[0] == "there/fcfs_jps0.2_seed1/trace.json"
    assert {path.name for path in Path("run/export").iterdir()} == {"turns.csv", "jobs.csv"}


@pytest.mark.usefixtures("run")
def test_finished_cells_are_exported_and_the_others_are_named() -> None:
    Path("run/fcfs_jps0.2_seed1/done.json").unlink()
    code, out, err = bench("export", "run", "--format", "chrome")
    assert code == 1
    assert out == "run/export/continuum_jps0.2_seed1/trace.json\n"
    assert err.startswith("bench: not exported: fcfs_jps0.2_seed1: not finished: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--format", "csv"], "nowhere: no such folder"),
        (["run/fcfs_jps0.2_seed1", "--format", "csv"], "is a cell of a run; give the run, run"),
        (["run", "--format", "csv", "--cell", "x"], "--cell x: run has no such cell; choose"),
        (
            ["run", "--format", "csv", "--out", "run/sweep.json"],
            "cannot write run/sweep.json: file exists",
        ),
    ],
)
@pytest.mark.usefixtures("run")
def test_invalid_arguments_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    code, out, err = bench("export", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
