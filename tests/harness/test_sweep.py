"""Complete sweeps of three programs: files, resuming, failures and reproducibility."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from small import contents, damages, never, run_sweep, small_plan

from harness.cells.workers import Tick, attempt
from harness.sweep.cell import Work, run_cell
from harness.sweep.folder import default_folder
from harness.sweep.plan import Cell
from harness.sweep.progress import SweepProgress
from servers.admission import Admission
from servers.policies import user_code
from servers.sim import Limits
from tests.lines import read_lines
from tests.sentences import mentions


def fail_at_continuum(work: Work, cell: Cell, tick: Tick) -> None:
    if cell.variant == "continuum":
        raise RuntimeError("no such luck")
    run_cell(work, cell, tick)


def test_a_sweep_writes_the_documented_files(tmp_path: Path) -> None:
    outcome = run_sweep(small_plan(), tmp_path / "run", workers=1)
    assert (outcome.cells, outcome.found_done, outcome.failed) == (2, 0, {})
    cell = {
        *("cell.json", "turns.jsonl.zst", "engine.jsonl.zst", "numbers.json.zst"),
        *("SHA256SUMS", "done.json"),
    }
    assert set(contents(tmp_path / "run")) == {
        "sweep.json",
        "sweep.toml",
        *(f"fcfs_jps0.5_seed1/{name}" for name in cell),
        *(f"continuum_jps0.5_seed1/{name}" for name in cell),
    }
    done = json.loads((tmp_path / "run/fcfs_jps0.5_seed1/done.json").read_text())
    assert (done["finished_programs"], done["failed_turns"]) == (3, 0)
    assert len(read_lines(tmp_path / "run/fcfs_jps0.5_seed1/turns.jsonl")) == 3 * 3


def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    plan = small_plan("fcfs,continuum,infercept+", (0.2, 1.0))
    for workers in (1, 2):
        run_sweep(plan, tmp_path / str(workers), workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_every_variant_sees_the_same_arrivals(tmp_path: Path) -> None:
    run_sweep(small_plan(), tmp_path / "run", workers=2)
    fcfs, continuum = (
        first_turns_s(tmp_path / f"run/{variant}_jps0.5_seed1") for variant in ("fcfs", "continuum")
    )
    assert len(fcfs) == 3
    assert fcfs == continuum


def first_turns_s(cell: Path) -> list[float]:
    turns = read_lines(cell / "turns.jsonl")
    return sorted(turn["scheduled_at_s"] for turn in turns if turn["turn"] == 0)


def test_a_finished_cell_is_never_run_twice(tmp_path: Path) -> None:
    run_sweep(small_plan(), tmp_path / "run", workers=1)
    outcome = run_sweep(small_plan(), tmp_path / "run", workers=1, run=never)
    assert (outcome.cells, outcome.found_done, outcome.failed) == (2, 2, {})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cell.json", "garbage", "cell.json: not JSON"),
        ("cell.json", None, "cell.json: does not exist\n"),
        ("done.json", "{}", "done.json: lacks finished_programs\n"),
        ("turns.jsonl.zst", None, "turns.jsonl.zst: does not exist\n"),
        ("turns.jsonl.zst", "", "turns.jsonl.zst: differs from its checksum in SHA256SUMS\n"),
        ("numbers.json.zst", None, "numbers.json.zst: does not exist\n"),
        ("numbers.json.zst", "", "numbers.json.zst: differs from its checksum in SHA256SUMS\n"),
        ("SHA256SUMS", None, "SHA256SUMS: does not exist\n"),
    ],
)
def test_an_unreadable_finished_cell_is_set_aside_and_run_again(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | None,
    message: str,
) -> None:
    folder, cell = tmp_path / "run", "fcfs_jps0.5_seed1"
    run_sweep(small_plan(), folder, workers=1)
    straight = contents(folder)
    (folder / cell / name).unlink()
    if content is not None:
        (folder / cell / name).write_text(content)
    capsys.readouterr()
    again = run_sweep(small_plan(), folder, workers=1)
    assert (again.found_done, again.failed) == (1, {})
    assert contents(folder) == straight
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"bench: damaged: {folder}/{cell}/{message}")
    assert mentions(stderr, f"files of {cell}", f"{folder}/{cell}.aside-1")
    assert "partial output" not in stderr


@pytest.mark.parametrize(
    "name",
    ["cell.json", "turns.jsonl.zst", "engine.jsonl.zst", "numbers.json.zst", "done.json"],
)
def test_a_cell_that_is_not_as_it_was_written_is_named_and_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = tmp_path / "run"
    run_sweep(small_plan(), folder, workers=1)
    straight, path = contents(folder), folder / "continuum_jps0.5_seed1" / name
    for damage in damages(name):
        path.write_bytes(damage(straight[str(path.relative_to(folder))]))
        capsys.readouterr()
        again = run_sweep(small_plan(), folder, workers=1)
        assert (again.found_done, again.failed) == (1, {})
        assert capsys.readouterr().err.startswith(f"bench: damaged: {path}: ")
        assert contents(folder) == straight


def test_a_failed_cell_is_recorded_the_others_run_and_the_next_sweep_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    outcome = run_sweep(small_plan(), folder, workers=1, run=fail_at_continuum)
    assert list(outcome.failed) == ["continuum_jps0.5_seed1"]
    failed = json.loads((folder / "continuum_jps0.5_seed1/failed.json").read_text())
    assert failed["error"] == "RuntimeError: no such luck"
    assert "failed: continuum_jps0.5_seed1: RuntimeError: no such luck" in capsys.readouterr().err
    assert (folder / "fcfs_jps0.5_seed1/done.json").exists()

    again = run_sweep(small_plan(), folder, workers=1)
    assert (again.found_done, again.failed) == (1, {})
    moved = "partial output of continuum_jps0.5_seed1", "*.aside-N"
    assert mentions(capsys.readouterr().err, *moved)
    run_sweep(small_plan(), tmp_path / "straight", workers=1)
    assert contents(folder) == contents(tmp_path / "straight")


POLICY = """\
from servers.policies.base import FREE, Policy

class Mine(Policy):
    name = "mine"

    def finished(self, request, now_s):
        if request.prompt_tokens == 500:
            {}
        return FREE
"""


@pytest.mark.parametrize(
    ("statement", "error", "traceback"),
    [
        (
            "{}['a']",
            "{module}.py:8: Mine.finished raised KeyError: 'a'",
            "Traceback (most recent call last):\n"
            '  File "{folder}/{module}.py", line 8, in finished\n'
            "    {{}}['a']\n    ~~^^^^^\nKeyError: 'a'\n",
        ),
        ("while True: pass", "{module}.py:8: Mine.finished has not returned after 0.2 s; its", ""),
    ],
    ids=["raises", "loops"],
)
def test_a_users_policy_that_raises_or_never_returns_fails_its_cell_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, error: str, traceback: str
) -> None:
    module = f"policy_that_{'raises' if traceback else 'loops'}"
    (tmp_path / f"{module}.py").write_text(POLICY.format(statement))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(user_code, "CALL_LIMIT_S", 0.2)
    plan = small_plan(f"{module}:Mine")
    (cell,) = plan.cells()
    _, failed = attempt(run_cell, Work(plan, tmp_path), cell, lambda *_: None)
    assert failed is not None
    line, _, own = failed.partition("\n")
    assert line.startswith(error.format(module=module))
    assert own == traceback.format(module=module, folder=tmp_path)


def test_a_new_stage_is_printed_at_once_and_its_numbers_every_few_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with SweepProgress(2, 0, 1) as progress:
        progress.started("fcfs")
        for stage in (
            "starting vLLM, 1 s",
            "starting vLLM, 2 s",
            "warming up",
            "starting agents, 0 of 12",
            "starting agents, 1 of 12",
            "running agents",
        ):
            progress.ticked("fcfs", 0, stage)
    lines = [re.sub(r", \d+ s;", ";", line) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "running 2 cells on 1 worker",
        "0/2 cells, 0 turns; starting vLLM, 1 s",
        "0/2 cells, 0 turns; warming up",
        "0/2 cells, 0 turns; starting agents, 0 of 12",
        "0/2 cells, 0 turns; running agents",
    ]


def test_a_search_counts_capacities_and_not_cells_whose_number_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = iter([(0, 6), (1, 6), (3, 6)])
    with SweepProgress(1, 0, 2, lambda: next(found)) as progress:
        for cell in ("a", "b"):
            progress.started(cell)
        progress.planned(4)
        progress.finished("a", None)
        progress.finished("b", None)
        progress.started("c")
    lines = capsys.readouterr().err.splitlines()
    assert mentions(lines[0], "searching capacities", "1 cell on 1 worker")
    assert re.sub(r", \d+ s$", "", lines[-1]) == (
        "3/6 capacities found, 2 cells done, 1 running, 0 turns"
    )
    assert not any("/5 cells" in line for line in lines)


def fail_in_red(_work: Work, _cell: Cell, _tick: Tick) -> None:
    raise RuntimeError("500: <html>\x1b[31m boom")


def test_control_characters_in_an_error_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sweep(small_plan("fcfs"), tmp_path / "run", workers=1, run=fail_in_red)
    assert r"500: <html>\x1b[31m boom" in capsys.readouterr().err


def test_stop_on_error_does_not_run_the_remaining_cells(tmp_path: Path) -> None:
    plan = small_plan("continuum,fcfs")
    outcome = run_sweep(
        plan, tmp_path / "run", workers=1, stop_on_error=True, run=fail_at_continuum
    )
    assert list(outcome.failed) == ["continuum_jps0.5_seed1"]
    assert not (tmp_path / "run/fcfs_jps0.5_seed1").exists()


def test_a_plan_without_cells_of_the_folder_is_refused_with_what_differs(
    tmp_path: Path,
) -> None:
    run_sweep(small_plan(), tmp_path / "run", workers=1)
    before = contents(tmp_path / "run")
    for other, difference in [
        (small_plan(jps=(0.7,)), r"jps is \[0.5\], now \[0.7\]"),
        (small_plan("fcfs"), "policies fcfs,continuum, now fcfs"),
        (small_plan(limits=Limits(64)), "limits.max_num_seqs is 256, now 64"),
        (
            small_plan(limits=Limits(admission=Admission.FIRST_CHUNK)),
            "limits.admission is whole-prompt, now first-chunk",
        ),
        (small_plan(limits=Limits(long_prefill=9)), "limits.long_prefill is .*, now 9"),
        (replace(small_plan(), code_sha256="abc"), "run with another version of the code"),
    ]:
        with pytest.raises(ValueError, match=difference):
            run_sweep(other, tmp_path / "run", workers=1, run=never)
    assert contents(tmp_path / "run") == before


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not a run"):
        run_sweep(small_plan(), tmp_path, workers=1)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="no field 'format'"):
        run_sweep(small_plan(), tmp_path / "torn", workers=1)
    with pytest.raises(ValueError, match="is a file"):
        run_sweep(small_plan(), tmp_path / "notes.txt", workers=1)


def test_equal_plans_and_only_those_have_the_same_default_folder() -> None:
    assert default_folder(small_plan()) == default_folder(small_plan())
    assert default_folder(small_plan()) != default_folder(small_plan(jps=(0.7,)))
