"""Run folders on disk: records are appended as they occur, `done.json` is written last."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cells.folder import CellFolder, Lines, is_done, mark_failed
from harness.cells.locks import locked
from servers.basics.errors import CannotWrite
from servers.records.done import DoneRecord


def test_a_cell_starts_with_its_config_and_ends_with_done_json(tmp_path: Path) -> None:
    cell = CellFolder(tmp_path / "cell", {"variant": "fcfs"})
    assert sorted(os.listdir(cell.path)) == ["cell.json", "engine.jsonl", "turns.jsonl"]
    cell.turns.append({"turn": 0})
    cell.events.append({"t": 0.5, "event": "pinned", "ttl_s": math.inf})
    assert not is_done(cell.path)
    cell.finish(DoneRecord(finished_programs=1, failed_turns=0, steps=7))
    assert is_done(cell.path)
    assert (cell.path / "turns.jsonl").read_text() == '{"turn":0}\n'
    # JSON has no infinity: a pin without expiry has the TTL null.
    assert (cell.path / "engine.jsonl").read_text() == ('{"t":0.5,"event":"pinned","ttl_s":null}\n')
    assert json.loads((cell.path / "done.json").read_text()) == {
        "finished_programs": 1, "failed_turns": 0, "steps": 7,
    }  # fmt: skip
    assert not list(cell.path.glob(".*"))


def test_records_are_flushed_every_thousand_lines_and_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock_s)
    lines = Lines(tmp_path / "turns.jsonl")

    def on_disk() -> int:
        return (tmp_path / "turns.jsonl").read_bytes().count(b"\n")

    for _ in range(999):
        lines.append({})
    assert on_disk() == 0
    lines.append({})
    assert on_disk() == 1000
    lines.append({})
    clock_s = 101.0
    lines.append({})
    assert on_disk() == 1002
    lines.append({})
    lines.close()
    assert on_disk() == 1003


def test_an_unfinished_cell_is_set_aside_under_the_next_free_number(tmp_path: Path) -> None:
    for attempt in range(3):
        with CellFolder(tmp_path / "cell", {"attempt": attempt}):
            pass
    configs = {p.parent.name: json.loads(p.read_text()) for p in tmp_path.glob("*/cell.json")}
    assert configs == {
        "cell.aside-1": {"attempt": 0},
        "cell.aside-2": {"attempt": 1},
        "cell": {"attempt": 2},
    }


def test_a_failed_cell_records_the_reason_and_is_not_done(tmp_path: Path) -> None:
    mark_failed(tmp_path / "cell", "KeyError: 'x'\nTraceback …")
    assert json.loads((tmp_path / "cell" / "failed.json").read_text()) == {
        "error": "KeyError: 'x'",
        "traceback": "Traceback …",
    }
    assert not is_done(tmp_path / "cell")


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "turns.jsonl")
    lines.append({"turn": 0})
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, lines._handle)
    os.close(full)
    with pytest.raises(CannotWrite, match=rf"turns\.jsonl: {os.strerror(errno.ENOSPC).lower()}; "):
        lines.close()


HOLD = """
import sys, time
from pathlib import Path
from harness.cells.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_writer_and_a_killed_writer_leaves_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(ValueError, match="another bench process"),
            locked(tmp_path),
        ):
            pass
        other.kill()
    with locked(tmp_path):
        assert os.listdir(tmp_path) == []


def test_a_record_that_does_not_fit_is_not_truncated_and_written_later(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "turns.jsonl")
    lines.append({"turn": 0})
    lines.flush()
    lines.append({"turn": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))  # half of the second line
    try:
        with pytest.raises(CannotWrite, match="file too large"):
            lines.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "turns.jsonl").read_text() == '{"turn":0}\n'
    lines.append({"turn": 2})
    lines.close()
    assert (tmp_path / "turns.jsonl").read_text() == '{"turn":0}\n{"turn":1}\n{"turn":2}\n'
