"""A truncated, empty or foreign file in a run folder costs one clear line; the rest is reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.metrics.cells import Results, collect
from reports.page.write import write
from reports.run_folder.lines import CHECKSUMS, DISCARD_AND_RERUN, RERUN
from reports.run_folder.read import load_run, read_cell
from servers.basics.errors import InvalidRunFolder
from tests.reports.make_run import seal, turn, write_cell, write_lines, write_sweep
from tests.sentences import mentions

FILES = ("cell.json", "done.json", "turns.jsonl", "engine.jsonl")
FOREIGN = (b"", b"[]", b"null", b"{}", b'"text"', b"\xff\xfe\x00", b"<html>\n", b"[]\n", b"{}\n")


def two_cells(run: Path) -> Path:
    """Write a run of two valid cells; return the folder of the second, for the test to break."""
    write_sweep(run, ["fcfs", "continuum"])
    write_cell(run, "fcfs", [turn("p0"), turn("p1")])
    cell = write_cell(run, "continuum", [turn("p0"), turn("p1")])
    write_lines(
        cell / "engine.jsonl",
        [
            {"t": 0.5, "event": "pinned", "program_id": "p0", "turn": 0, "blocks": 3},
            {"t": 1.0, "event": "unpinned", "program_id": "p0", "turn": 0, "reason": "ended"},
        ],
    )
    return cell


def results_of(run: Path) -> Results:
    results = collect(load_run(run))
    assert "fcfs" in results.cells["variant"].tolist()
    assert all("\n" not in reason for _, reason in results.missing)
    return results


@given(name=st.sampled_from(FILES), kept=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_costs_at_most_its_cell(
    tmp_path_factory: pytest.TempPathFactory, name: str, kept: float
) -> None:
    cell = two_cells(tmp_path_factory.mktemp("run"))
    whole = (cell / name).read_bytes()
    (cell / name).write_bytes(whole[: int(kept * len(whole))])
    results = results_of(cell.parent)
    listed = {*results.cells["cell"], *(name for name, _ in results.missing)}
    assert cell.name in listed or "continuum_jps0.5_seed1" in listed


@pytest.mark.parametrize("name", [*FILES, CHECKSUMS])
def test_a_change_of_any_byte_in_a_finished_cell_is_noticed(tmp_path: Path, name: str) -> None:
    cell = two_cells(tmp_path)
    path, whole = cell / name, (cell / name).read_bytes()
    # A checksum that was changed is taken for a change of its file.
    expected = re.escape(str(cell if name == CHECKSUMS else path))
    for at in range(0, len(whole), 7):
        changes = (bytes([whole[at] ^ (1 << at % 8)]), b"", whole[at : at + 1] + b" ")
        path.write_bytes(whole[:at] + changes[at % 3] + whole[at + 1 :])
        with pytest.raises(InvalidRunFolder, match=expected):
            read_cell(cell)
    path.write_bytes(whole)
    assert read_cell(cell).done is not None


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_costs_at_most_its_cell(tmp_path: Path, name: str) -> None:
    cell = two_cells(tmp_path)
    for content in FOREIGN:
        (cell / name).write_bytes(content)
        if not results_of(tmp_path).missing:  # then the report reads it
            write(tmp_path)
    write(tmp_path)


@pytest.mark.parametrize("content", FOREIGN, ids=repr)
def test_a_foreign_sweep_json_is_refused(tmp_path: Path, content: bytes) -> None:
    two_cells(tmp_path)
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(InvalidRunFolder, match=r"sweep\.json: (not .*JSON|format is)"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("jps", "fast", f"cell.json: jps is 'fast': expected float | null; {RERUN}"),
        (
            "workload",
            None,
            f"cell.json: workload is None: expected object; {RERUN}",
        ),
        ("seed", [1], f"cell.json: seed is a list: expected int; {RERUN}"),
    ],
)
def test_an_invalid_field_of_a_cell_is_named_with_its_value(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    cell = two_cells(tmp_path)
    config = json.loads((cell / "cell.json").read_text()) | {field: value}
    (cell / "cell.json").write_text(json.dumps(config))
    seal(cell)
    reasons = [reason for _, reason in results_of(tmp_path).missing if reason != "not run yet"]
    assert [reason.split("/")[-1] for reason in reasons] == [message]


def test_a_cell_without_a_turn_has_no_result(tmp_path: Path) -> None:
    cell = two_cells(tmp_path)
    write_lines(cell / "turns.jsonl", [])
    ((name, reason),) = results_of(tmp_path).missing
    assert name == cell.name
    assert reason.endswith(f"turns.jsonl: has no turns; {RERUN}")


def test_a_turn_without_a_valid_job_id_is_refused(tmp_path: Path) -> None:
    cell = two_cells(tmp_path)
    write_lines(cell / "turns.jsonl", [turn("p0"), turn("p1", job_id=7)])
    ((_, reason),) = results_of(tmp_path).missing
    assert mentions(reason, "turns.jsonl, line 2", "job_id is 7", "str", DISCARD_AND_RERUN)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("output_tokens", "x", "output_tokens is 'x': expected int | null"),
        ("queue_s", {}, "queue_s is a dict: expected float | null"),
        ("decode_s", [1.0], "decode_s is a list: expected float | null"),
        ("tools", ["ls", 1], "tools[1] is 1: expected str"),
        ("turn", -1, "turn is -1: expected int >= 0"),
        ("wait_s", 1e16, "wait_s is 1e+16: expected float <= 1000000000000000.0"),
    ],
)
def test_an_invalid_value_of_a_turn_is_named_with_its_line(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    cell = two_cells(tmp_path)
    write_lines(cell / "turns.jsonl", [turn("p0"), turn("p1") | {field: value}])
    ((_, reason),) = results_of(tmp_path).missing
    assert reason.endswith(f"turns.jsonl, line 2: {message}; {DISCARD_AND_RERUN}")


def test_an_unreadable_failed_json_does_not_hide_the_other_cells(tmp_path: Path) -> None:
    cell = two_cells(tmp_path)
    (cell / "done.json").unlink()
    (cell / "failed.json").write_text('{"error": "no me')
    ((_, reason),) = results_of(tmp_path).missing
    assert reason.startswith("failed for an unknown reason")


def test_a_cell_without_a_result_is_named_in_the_report(tmp_path: Path) -> None:
    cell = two_cells(tmp_path)
    (cell / "done.json").unlink()
    report = write(tmp_path)
    assert mentions(report.answer, "1 cell of 2", "continuum_jps0.5_seed1")
    assert "not finished: 2 turns recorded" in report.path.read_text()
