"""Which cells keep their turns, and how those that did not are run again."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cells.folder import Lines, remove_lines
from harness.load.settings import Keep
from harness.sweep import search
from harness.sweep.again import run_again
from harness.sweep.finished import is_finished
from harness.sweep.plan import SweepPlan
from reports import write_report
from reports.capacity.estimate import Kind
from reports.run_folder.lines import CHECKSUMS, LINES, without_lines
from reports.run_folder.read import load_run
from reports.statistics.searched import searched
from servers.basics.atomic import write_file
from servers.basics.errors import InvalidInput
from tests.harness.in_process import bench
from tests.harness.small import cells_of, contents, never, run_sweep, search_plan, small_plan
from tests.lines import read_lines
from tests.reports.make_run import change_numbers
from tests.sentences import mentions

FCFS, CONTINUUM = "fcfs_jps0.5_seed1", "continuum_jps0.5_seed1"
SEARCH = search_plan("fcfs", seeds=(1, 2))


def run(
    plan: SweepPlan, folder: Path, keep: Keep | None, **options: Callable[..., None]
) -> dict[str, bytes]:
    """Run a sweep, and return the files of its folder."""
    outcome = run_sweep(plan, folder, workers=1, reuse=False, keep=keep, **options)  # type: ignore[arg-type]
    assert not outcome.failed
    return contents(folder)


def with_turns(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/turns.jsonl*")}


def of_lines(name: str) -> bool:
    return Path(name).name in LINES


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> dict[Keep, Path]:
    """Return the folders of the same search with each setting, where it has its report. A search
    keeps what its report draws unless told otherwise."""
    folder = tmp_path_factory.mktemp("searches")
    for keep in Keep:
        run(SEARCH, folder / keep, None if keep is Keep.SHOWN else keep)
        write_report(folder / keep)
    return {keep: folder / keep for keep in Keep}


def copy_of(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / folder.name))


def test_the_numbers_of_a_report_do_not_depend_on_the_turns_that_are_kept(
    searches: dict[Keep, Path],
) -> None:
    for name in ("cells.csv", "cells.json", "answer.json"):
        found = {keep: (folder / name).read_bytes() for keep, folder in searches.items()}
        assert found[Keep.NONE] == found[Keep.SHOWN] == found[Keep.TURNS], name


def test_without_turns_a_cell_has_its_other_files_unchanged(searches: dict[Keep, Path]) -> None:
    whole, bare = contents(searches[Keep.TURNS]), contents(searches[Keep.NONE])
    cells = cells_of(searches[Keep.TURNS])
    assert with_turns(searches[Keep.TURNS]) == cells == cells_of(searches[Keep.NONE])
    assert with_turns(searches[Keep.NONE]) == set()
    for name in whole:
        if (cell := name.partition("/")[0]) in cells:
            if of_lines(name):
                assert name not in bare
            elif name == f"{cell}/{CHECKSUMS}":
                assert bare[name] == without_lines(whole[name]) != whole[name]
            else:
                assert bare[name] == whole[name], name


def test_a_search_keeps_the_turns_that_its_report_draws(searches: dict[Keep, Path]) -> None:
    """They are those of the first seed at the rates where all policies ran."""
    found = searched(load_run(searches[Keep.SHOWN]))
    assert found is not None
    assert not found.higher
    assert with_turns(searches[Keep.SHOWN]) == {f"fcfs_jps{jps:g}_seed1" for jps in found.rates}
    assert len(with_turns(searches[Keep.SHOWN])) < len(cells_of(searches[Keep.SHOWN]))
    html = {keep: (folder / "report.html").read_text() for keep, folder in searches.items()}
    assert 'id="gantt"' in html[Keep.SHOWN]
    assert 'id="gantt"' in html[Keep.TURNS]
    assert mentions(html[Keep.NONE], "not drawn", "turns of these cells")


def test_turns_are_removed_once_the_capacity_of_the_baseline_is_known_with_all_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates that the report draws depend on all of them."""
    known: list[dict[int, Kind]] = []

    def removed(cell: Path) -> None:
        found = searched(load_run(cell.parent))
        assert found is not None
        known.append({seed: each.kind for seed, each in found.found[0].by_seed.items()})

    monkeypatch.setattr(search, "remove_lines", removed)
    run(SEARCH, tmp_path / "run", None)
    assert known
    assert all(kinds == {1: Kind.FOUND, 2: Kind.FOUND} for kinds in known)


def test_a_sweep_of_given_rates_keeps_all_turns_unless_told_otherwise(tmp_path: Path) -> None:
    run(small_plan(), tmp_path / "given", None)
    assert with_turns(tmp_path / "given") == {FCFS, CONTINUUM}


def test_a_users_rates_keep_the_turns_of_the_first_seed(tmp_path: Path) -> None:
    run(search_plan(jps=(0.3, 0.5), seeds=(1, 2)), tmp_path / "run", None)
    assert with_turns(tmp_path / "run") == {"fcfs_jps0.3_seed1", FCFS}
    assert len(cells_of(tmp_path / "run")) > 4


@pytest.mark.parametrize("keep", list(Keep))
def test_a_finished_sweep_with_the_same_setting_runs_nothing_again(
    tmp_path: Path, searches: dict[Keep, Path], keep: Keep
) -> None:
    folder = copy_of(searches[keep], tmp_path)
    before = contents(folder)
    assert run(SEARCH, folder, keep, run=never) == before


@pytest.mark.parametrize("keep", [Keep.TURNS, Keep.SHOWN, Keep.NONE])
def test_a_resumed_sweep_removes_no_turns_that_an_earlier_one_kept(
    tmp_path: Path, searches: dict[Keep, Path], keep: Keep
) -> None:
    folder = copy_of(searches[Keep.TURNS], tmp_path)
    before = contents(folder)
    assert run(SEARCH, folder, keep, run=never) == before


def test_cells_without_turns_run_again_if_all_turns_are_to_be_kept(
    tmp_path: Path, searches: dict[Keep, Path]
) -> None:
    folder = copy_of(searches[Keep.SHOWN], tmp_path)
    without = cells_of(folder) - with_turns(folder)
    outcome = run_sweep(SEARCH, folder, workers=1, reuse=False, keep=Keep.TURNS)
    assert (outcome.failed, outcome.found_done) == ({}, outcome.cells - len(without))
    whole = contents(searches[Keep.TURNS])
    assert {name: data for name, data in contents(folder).items() if "_seed" in name} == {
        name: data for name, data in whole.items() if "_seed" in name
    }


def test_only_cells_with_turns_are_taken_from_other_runs_if_turns_are_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(small_plan(), Path("runs/first"), Keep.NONE)
    for keep, taken in ((Keep.TURNS, 0), (Keep.NONE, 2)):
        folder = Path("runs", f"with-{keep}")
        if keep is Keep.NONE:
            shutil.rmtree("runs/with-turns")
        assert not run_sweep(small_plan(), folder, workers=1, keep=keep).failed
        assert len(list(folder.glob("*/taken_from.json"))) == taken
        assert len(with_turns(folder)) == 2 - taken


def test_removing_turns_of_a_cell_leaves_the_copies_in_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are hard links."""
    monkeypatch.chdir(tmp_path)
    run(small_plan(), Path("runs/first"), Keep.TURNS)
    run_sweep(small_plan(), Path("runs/second"), workers=1)
    before = contents(Path("runs/second"))
    remove_lines(Path("runs/first", FCFS))
    assert contents(Path("runs/second")) == before
    assert is_finished(Path("runs/first", FCFS))
    assert not is_finished(Path("runs/first", FCFS), needs_turns=True)


@pytest.mark.parametrize("of_search", [False, True], ids=["given rates", "search"])
def test_a_cell_that_is_run_again_has_the_bytes_of_one_that_kept_its_turns(
    tmp_path: Path, searches: dict[Keep, Path], of_search: bool
) -> None:
    if of_search:
        plan, folder = SEARCH, copy_of(searches[Keep.NONE], tmp_path)
        expected = contents(searches[Keep.TURNS])
    else:
        plan, folder = small_plan("fcfs,continuum,infercept+"), tmp_path / "bare"
        run(plan, folder, Keep.NONE)
        expected = run(plan, tmp_path / "whole", Keep.TURNS)
    before = contents(folder)
    name = max(cells_of(folder))
    assert run_again(plan, folder, name) == folder / name
    after = contents(folder)
    assert {n for n in after if before.get(n) != after[n]} == {
        f"{name}/{each}" for each in ("turns.jsonl.zst", "engine.jsonl.zst", CHECKSUMS)
    }
    assert {n: data for n, data in after.items() if n.startswith(f"{name}/")} == {
        n: data for n, data in expected.items() if n.startswith(f"{name}/")
    }
    assert not list(folder.glob("*.aside-*"))
    assert is_finished(folder / name, needs_turns=True)


def test_a_cell_that_has_its_turns_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(small_plan(), tmp_path / "run", Keep.TURNS)
    monkeypatch.setattr("harness.sweep.cell.run_cell", never)
    assert run_again(small_plan(), tmp_path / "run", FCFS) == tmp_path / "run" / FCFS
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("plan", "name", "message"),
    [
        (small_plan(), "fcsf_jps0.5_seed1", "has no such cell; did you mean fcfs_jps0.5_seed1?"),
        (small_plan("fcfs"), CONTINUUM, "other settings or other code ran this cell; give the"),
        (replace(small_plan(), code_sha256="abc"), FCFS, "other settings or other code ran this"),
        (replace(small_plan(), steady=True), FCFS, "other settings or other code ran this cell"),
    ],
    ids=["unknown cell", "a policy that the plan lacks", "other code", "other settings"],
)
def test_a_cell_that_the_plan_does_not_have_is_refused_and_stays(
    tmp_path: Path, plan: SweepPlan, name: str, message: str
) -> None:
    before = run(small_plan(), tmp_path / "run", Keep.NONE)
    with pytest.raises(InvalidInput) as error:
        run_again(plan, tmp_path / "run", name)
    assert str(error.value).startswith(f"--show {name}: ")
    assert message in str(error.value)
    assert contents(tmp_path / "run") == before


def test_a_cell_whose_numbers_other_code_computed_runs_again(tmp_path: Path) -> None:
    run(small_plan(), tmp_path / "run", Keep.NONE)
    assert is_finished(tmp_path / "run" / FCFS)
    change_numbers(tmp_path / "run", code_sha256="other")
    assert not is_finished(tmp_path / "run" / FCFS)
    outcome = run_sweep(small_plan(), tmp_path / "run", workers=1, reuse=False, keep=Keep.NONE)
    assert (outcome.found_done, outcome.failed) == (0, {})
    assert is_finished(tmp_path / "run" / FCFS)
    assert with_turns(tmp_path / "run") == set()


def test_a_process_that_is_killed_while_it_removes_turns_leaves_a_finished_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, cell = tmp_path / "run", tmp_path / "run" / FCFS
    run(small_plan(), folder, Keep.TURNS)
    kept = without_lines((cell / CHECKSUMS).read_bytes())
    write_file(cell / CHECKSUMS, kept)
    assert is_finished(cell)  # killed before it removes the first one
    (cell / "turns.jsonl.zst").unlink()
    assert is_finished(cell)
    assert not is_finished(cell, needs_turns=True)
    assert load_run(folder).missing == ()
    assert "damaged" not in capsys.readouterr().err
    assert run(small_plan(), folder, Keep.NONE, run=never)
    remove_lines(cell)
    assert not [name for name in os.listdir(cell) if name in LINES]
    assert is_finished(cell)
    remove_lines(cell)
    assert is_finished(cell)


CLI = ("--once", "--jps", "0.5", "--programs", "4", "--policies", "fcfs,continuum")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder whose cells have no turns, except for one."""
    monkeypatch.chdir(tmp_path)
    code, _, err = bench("sweep", *CLI, "--keep", "none", "--out", "run")
    assert code == 0, err
    code, out, err = bench("sweep", *CLI, "--out", "run", "--show", FCFS)
    assert code == 0, err
    assert out.splitlines()[-1] == f"run/{FCFS}"
    assert "engine events" in out
    return Path("run")


def test_a_cell_that_is_shown_keeps_its_turns_then(bare: Path) -> None:
    assert with_turns(bare) == {FCFS}
    first = bench("sweep", *CLI, "--out", "run", "--show", FCFS)
    assert first[0] == 0
    assert "running" not in first[2]
    assert bench("sweep", "run/sweep.toml", "--out", "run", "--show", FCFS)[:2] == first[:2]
    assert bench("report", "run")[0] == 0
    assert with_turns(bare) == {FCFS}


def test_the_settings_of_a_shown_cell_must_be_those_of_its_sweep(bare: Path) -> None:
    before = contents(bare)
    others = (*CLI, "--kv-blocks", "9999")
    code, out, err = bench("sweep", *others, "--out", "run", "--show", CONTINUUM)
    assert (code, out) == (2, "")
    assert mentions(err, f"--show {CONTINUUM}", "other settings", "run/sweep.toml")
    for option in (["--keep", "none"], ["--workers", "1"], ["--fail-unless", "x > 1"]):
        code, _, err = bench("sweep", *CLI, "--out", "run", "--show", FCFS, *option)
        assert code == 2
        assert f"{option[0]}: not supported with --show" in err
    assert contents(bare) == before


def test_a_single_cell_keeps_its_turns_even_if_its_settings_file_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('keep = "none"\n')
    options = (*CLI[:-1], "fcfs")
    code, out, err = bench("sweep", "--one", "mine.toml", *options, "--out", "one")
    assert code == 0, err
    assert out.splitlines()[-1] == f"one/{FCFS}"
    assert with_turns(Path("one")) == {FCFS}


@pytest.mark.usefixtures("bare")
def test_a_chart_of_a_cell_without_turns_says_how_to_get_them() -> None:
    assert bench("report", "run", "--gantt", FCFS)[0] == 0
    code, out, err = bench("report", "run", "--gantt", CONTINUUM)
    assert (code, out) == (2, "")
    again = f"bench sweep run/sweep.toml --out run --show {CONTINUUM}\n"
    assert mentions(err, f"--gantt: run/{CONTINUUM}", "not kept", again)
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("form", "file"), [("csv", "turns.csv"), ("chrome", f"{FCFS}/trace.json")])
def test_an_export_names_the_cells_without_turns_and_has_the_others(
    bare: Path, form: str, file: str
) -> None:
    code, out, err = bench("export", "run", "--format", form)
    assert code == 1
    again = "bench sweep run/sweep.toml --out run --keep turns\n"
    assert mentions(err, "not exported", "1 cell of 2", again)
    assert len(err.splitlines()) == 1
    assert f"run/export/{file}" in out.splitlines()
    assert (bare / "export" / file).stat().st_size > 100
    assert CONTINUUM not in (bare / "export" / file).read_text()


def test_the_bytes_of_a_compressed_file_do_not_depend_on_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(name: str, step_s: float) -> bytes:
        clock = itertools.count(0.0, step_s)
        monkeypatch.setattr("harness.cells.folder.time.monotonic", lambda: next(clock))
        lines = Lines(tmp_path / name, compressed=True)
        for number in range(2500):
            lines.append({"turn": number, "text": str(number**7)})
        lines.close()
        assert len(read_lines(tmp_path / name)) == 2500
        return (tmp_path / f"{name}.zst").read_bytes()

    assert written("fast", 0.0) == written("slow", 10.0)
