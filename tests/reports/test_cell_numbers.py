"""The stored numbers of a cell in virtual time: they equal those computed from its turns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import orjson
import pandas as pd
import pytest
import zstandard

from harness.load.settings import Keep
from harness.sweep.plan import SweepPlan
from reports import write_report
from reports.metrics import cell_numbers
from reports.metrics.cell_numbers import (
    CellNumbers,
    compute_numbers,
    encode_numbers,
    ended_jobs_s,
    read_numbers,
)
from reports.metrics.cells import Results, collect
from reports.metrics.measure import read_recorded
from reports.metrics.steady import unstable_cells
from reports.run_folder.lines import CELL_NUMBERS
from reports.run_folder.read import Run, load_run
from tests.harness.in_process import bench
from tests.harness.small import contents, run_sweep, small_plan
from tests.lines import rewrite
from tests.reports.make_run import change_numbers, seal
from tests.sentences import mentions

CELL = "fcfs_jps0.5_seed1"


@pytest.fixture(autouse=True)
def _forked_workers(forked_workers: None) -> None:
    pass


def sweep(plan: SweepPlan, folder: Path, keep: Keep = Keep.TURNS) -> Run:
    outcome = run_sweep(plan, folder, workers=1, keep=keep)
    assert not outcome.failed
    return load_run(folder)


def without_numbers(run: Run, folder: Path) -> Run:
    """Return a copy of a run whose numbers are computed from the turns."""
    shutil.copytree(run.folder, folder)
    for cell in folder.glob("*/done.json"):
        (cell.parent / CELL_NUMBERS).unlink()
        seal(cell.parent)
    return load_run(folder)


def check_equal(run: Run, folder: Path) -> Results:
    """Check that the stored numbers equal those computed from the turns, to the last bit."""
    computed = without_numbers(run, folder)
    stored, from_turns = collect(run), collect(computed)
    assert stored.missing == from_turns.missing == ()
    for found, expected in ((stored.cells, from_turns.cells), (stored.jobs, from_turns.jobs)):
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
        assert found.to_csv() == expected.to_csv()
    for cell, same in zip(run.cells, computed.cells, strict=True):
        assert read_numbers(cell) is not None
        assert read_numbers(same) is None
        assert ended_jobs_s(cell) == ended_jobs_s(same) != {}
    return stored


def test_numbers_of_a_fixed_set_of_jobs_with_pins_and_an_offload_tier_are_those_of_the_turns(
    tmp_path: Path,
) -> None:
    run = sweep(small_plan("fcfs,turnstile,infercept+", (0.2, 1.0)), tmp_path / "run")
    cells = check_equal(run, tmp_path / "copy").cells.set_index("cell")
    assert (cells.loc[cells["variant"] != "fcfs", "pin_block_s"] > 0).all()
    assert cells["offload"].any()


def test_numbers_of_steady_and_unstable_cells_are_those_of_the_turns(tmp_path: Path) -> None:
    plan = replace(small_plan("fcfs,turnstile", (0.2, 20.0)), steady=True)
    run = sweep(plan, tmp_path / "run")
    cells = check_equal(run, tmp_path / "copy").cells.set_index("cell")
    assert (cells["unstable"] != "").to_dict() == {
        f"{variant}_jps{jps}_seed1": jps == "20"
        for variant in ("fcfs", "turnstile")
        for jps in ("0.2", "20")
    }
    unstable = next(each for each in run.cells if each.folder.name == "fcfs_jps20_seed1")
    assert read_numbers(unstable).jobs["job_id"] == []  # type: ignore[union-attr]


def test_numbers_of_a_cell_that_counts_as_unstable_because_a_lower_rate_was_are_those_of_the_turns(
    tmp_path: Path,
) -> None:
    plan = replace(small_plan("fcfs", (0.2, 0.3)), steady=True)
    sweep(plan, tmp_path / "run")
    done = tmp_path / "run/fcfs_jps0.2_seed1/done.json"
    lower = orjson.loads(done.read_bytes())
    done.write_bytes(orjson.dumps(lower | {"unstable": "the queue grew"}))
    seal(done.parent)
    run = load_run(tmp_path / "run")
    assert [cell.done.unstable for cell in run.cells] == ["the queue grew", None]
    assert len(unstable_cells(run.cells)) == 2
    found = check_equal(run, tmp_path / "copy")
    assert found.jobs.empty
    assert "0.2" in found.cells["unstable"].tolist()[1]
    numbers = read_numbers(run.cells[1])
    assert numbers is not None
    assert numbers.unstable_row is not None
    assert len(numbers.jobs["job_id"]) > 100


def test_numbers_of_a_cell_with_a_background_are_those_of_the_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"timestamp": k, "input_length": 300 + k, "output_length": 9} for k in range(8)]
    Path("chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = "sweep --once --programs 4 --jps 0.5 --policies fcfs,continuum --out run"
    code, _, err = bench(*command.split(), "--background", "chat.jsonl@2")
    assert code == 0, err
    cells = check_equal(load_run(Path("run")), Path("copy")).cells
    assert (cells["background_requests"] > 20).all()


def test_numbers_of_failed_turns_are_those_of_the_turns(tmp_path: Path) -> None:
    """Those that are computed again are stored like those of a cell that ran."""
    sweep(small_plan("fcfs"), tmp_path / "run")
    cell = tmp_path / "run" / CELL
    rewrite(cell / "turns.jsonl", lambda t: t.replace(b'"error":null', b'"error":"reset"', 1))
    (cell / CELL_NUMBERS).unlink()
    seal(cell)
    (read,) = load_run(tmp_path / "run").cells
    numbers = compute_numbers(read, read_recorded(read))
    (cell / CELL_NUMBERS).write_bytes(encode_numbers(numbers))
    seal(cell)
    found = check_equal(load_run(tmp_path / "run"), tmp_path / "copy")
    assert found.cells["failed_turns"].tolist() == [1]
    assert "reset" in found.failed_gates[CELL]


OTHER_CODE = {"code_sha256": "other"}


def test_numbers_of_other_code_are_computed_again_from_the_turns(tmp_path: Path) -> None:
    run = sweep(small_plan(), tmp_path / "run")
    before = collect(run)
    for cell in run.cells:  # which shows that they are not used
        spoil(cell.folder)
    assert collect(run).cells["jobs"].tolist() == [77, 77]
    change_numbers(run.folder, **OTHER_CODE)
    after = collect(run)
    assert after.missing == ()
    pd.testing.assert_frame_equal(after.cells, before.cells, check_exact=True)
    pd.testing.assert_frame_equal(after.jobs, before.jobs, check_exact=True)


def test_numbers_with_the_fields_of_other_code_are_computed_again_from_the_turns(
    tmp_path: Path,
) -> None:
    run = sweep(small_plan(), tmp_path / "run")
    before = collect(run).cells["jobs"].tolist()
    for cell in run.cells:
        path = cell.folder / CELL_NUMBERS
        path.write_bytes(zstandard.compress(b'{"row": {}}'))
        seal(cell.folder)
    found = collect(run)
    assert (found.cells["jobs"].tolist(), found.missing) == (before, ())


def spoil(cell: Path) -> None:
    path = cell / CELL_NUMBERS
    numbers = msgspec.json.decode(
        zstandard.ZstdDecompressor().decompress(path.read_bytes()), type=CellNumbers
    )
    numbers.row["jobs"] = 77
    path.write_bytes(encode_numbers(numbers))
    seal(cell)


def test_without_turns_numbers_of_other_code_get_a_caveat_and_the_sweep_runs_the_cell_again(
    tmp_path: Path,
) -> None:
    plan, folder = small_plan(), tmp_path / "run"
    expected = collect(sweep(plan, folder, Keep.NONE))
    assert not expected.cells.empty
    change_numbers(folder, **OTHER_CODE)
    results = collect(load_run(folder))
    assert results.by_other_code == 2
    assert results.missing == ()
    pd.testing.assert_frame_equal(results.cells, expected.cells, check_exact=True)
    caveats = write_report(folder).result.caveats
    assert mentions(caveats, "2 cells", "turns were not kept")
    outcome = run_sweep(plan, folder, workers=1, keep=Keep.NONE)
    assert (outcome.found_done, outcome.failed) == (0, {})
    again = collect(load_run(folder))
    assert again.by_other_code == 0
    pd.testing.assert_frame_equal(again.cells, expected.cells, check_exact=True)
    assert not list(folder.glob("*/turns.jsonl*"))
    assert not list(folder.glob("*.aside-*"))


def test_the_hash_of_the_code_does_not_depend_on_comments_and_docstrings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in cell_numbers.CODE:
        shutil.copytree(cell_numbers.ROOT / folder, tmp_path / folder)
    before = cell_numbers.code_sha256.__wrapped__()
    monkeypatch.setattr(cell_numbers, "ROOT", tmp_path)
    path = tmp_path / "reports/metrics/jct.py"
    text = path.read_text()
    path.write_text("# A comment.\n" + text.replace('"""', '"""Another line. ', 1))
    assert cell_numbers.code_sha256.__wrapped__() == before
    path.write_text(text + "\nX = 1\n")
    assert cell_numbers.code_sha256.__wrapped__() != before


def cut(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def garbage(whole: bytes) -> bytes:
    return b"garbage" + whole[7:]


def flipped(whole: bytes) -> bytes:
    at = len(whole) // 2
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


@pytest.mark.parametrize("name", [CELL_NUMBERS, "turns.jsonl.zst", "engine.jsonl.zst"])
@pytest.mark.parametrize("damage", [cut, garbage, flipped])
def test_a_damaged_file_is_named_and_no_other_cell_is_lost(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path / "run"
    sweep(small_plan(), folder)
    path = folder / CELL / name
    path.write_bytes(damage(path.read_bytes()))
    found = collect(load_run(folder))
    assert found.cells["cell"].tolist() == ["continuum_jps0.5_seed1"]
    ((cell, why),) = found.missing
    assert (cell, why.startswith(f"{path}: differs from its checksum")) == (CELL, True)


@pytest.mark.parametrize("damage", [cut, garbage])
def test_damaged_numbers_with_a_matching_checksum_are_named_and_run_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    plan, folder = small_plan(), tmp_path / "run"
    sweep(plan, folder, Keep.NONE)
    straight = contents(folder)
    path = folder / CELL / CELL_NUMBERS
    path.write_bytes(damage(path.read_bytes()))
    seal(path.parent)
    found = collect(load_run(folder))
    assert found.cells["cell"].tolist() == ["continuum_jps0.5_seed1"]
    ((cell, why),) = found.missing
    assert (cell, why.startswith(f"{path}: ")) == (CELL, True)
    assert why.count("\n") == 0
    outcome = run_sweep(plan, folder, workers=1, keep=Keep.NONE)
    assert (outcome.found_done, outcome.failed) == (1, {})
    assert contents(folder) == straight


@pytest.mark.parametrize(
    ("name", "damage", "named"),
    [
        ("turns.jsonl.zst", garbage, "turns.jsonl.zst: cannot be decompressed: "),
        ("engine.jsonl.zst", garbage, "engine.jsonl.zst: cannot be decompressed: "),
        ("turns.jsonl.zst", cut, "turns.jsonl: has no turns; "),
    ],
)
def test_damaged_lines_with_a_matching_checksum_are_named_once_they_are_read(
    tmp_path: Path,
    name: str,
    damage: Callable[[bytes], bytes],
    named: str,
) -> None:
    folder = tmp_path / "run"
    sweep(small_plan(), folder)
    path = folder / CELL / name
    path.write_bytes(damage(path.read_bytes()))
    seal(path.parent)
    assert collect(load_run(folder)).missing == ()  # their numbers are stored
    change_numbers(folder, **OTHER_CODE)
    found = collect(load_run(folder))
    assert found.cells["cell"].tolist() == ["continuum_jps0.5_seed1"]
    ((cell, why),) = found.missing
    assert (cell, why.startswith(str(path.with_name(named)))) == (CELL, True)
    assert why.count("\n") == 0
