"""Run folders with one mutated file: its cell is either reported as missing or in the report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random

import orjson

from reports.metrics.cells import collect
from reports.page.write import write
from reports.run_folder.lines import CHECKSUMS
from reports.run_folder.read import load_run
from servers.basics.errors import InvalidRunFolder
from tests.fuzz import injected
from tests.fuzz.loaders import assert_one_line, folder
from tests.fuzz.mutations import mutated
from tests.fuzz.samples import turn
from tests.fuzz.target import Target
from tests.reports.make_run import seal, write_cell, write_lines, write_sweep

CELL = "fcfs_jps0.5_seed1"
TURNS = [
    turn("p", 0, 0.0, job_id="p"),
    turn("q", 0, 0.2, job_id="q"),
    turn("p", 1, 2.0, job_id="p", error="the server answered 500: no"),
]
USAGE = [[1.0, 9, 2, 0, 1, 5, 0], [3.0, 4, 0, 1, 0, 3, 0]]
EVENTS = [
    {"t": 1.0, "event": "pinned", "program_id": "p", "turn": 0, "ttl_s": 3.0, "blocks": 6},
    {"t": 2.0, "event": "unpinned", "program_id": "p", "turn": 0, "reason": "reused"},
]
AGENTS = [{"program_id": "p", "task_id": "p", "exit_status": "Submitted", "error": None}]
FILES = ("sweep.json", *(f"{CELL}/{name}" for name in (
    "cell.json", "done.json", "turns.jsonl", "engine.jsonl", "failed.json", "programs.jsonl",
    "evaluation.json", CHECKSUMS)))  # fmt: skip


def run() -> Path:
    """Return the run folder of this process; each input restores the file that it changes."""
    run_folder = folder() / "run"
    if not run_folder.exists():
        _fill(run_folder)
    return run_folder


def _fill(run_folder: Path) -> None:
    write_sweep(run_folder, ["fcfs", "continuum"], agent={"name": "x", "guided": False})
    for name in ("fcfs", "continuum"):
        cell = write_cell(run_folder, name, TURNS, usage=USAGE)
        write_lines(cell / "engine.jsonl", EVENTS)
    write_lines(run_folder / CELL / "programs.jsonl", AGENTS)
    (run_folder / CELL / "evaluation.json").write_bytes(orjson.dumps({"resolved_ids": ["p"]}))


@cache
def _samples() -> tuple[bytes, ...]:
    failed = orjson.dumps({"error": "no memory", "traceback": None})
    paths = [run() / name for name in FILES]
    return tuple(path.read_bytes() if path.is_file() else failed for path in paths)


def _make(random: Random) -> bytes:
    index = random.randrange(len(FILES))
    return bytes([index]) + mutated(_samples()[index], random)


def _with(data: bytes, read: Callable[[], object]) -> bool:
    index = data[0] % len(FILES) if data else 0
    path, original = run() / FILES[index], _samples()[index]
    path.write_bytes(data[1:])
    if path.name != CHECKSUMS:
        seal(run() / CELL)  # As an attacker would, so that readers get the content.
    done = run() / CELL / "done.json"
    is_failed = path.name == "failed.json"
    if is_failed:
        done.unlink()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read()
    except InvalidRunFolder as error:
        assert_one_line(str(error))
        return False
    finally:
        path.write_bytes(original)
        if is_failed:
            path.unlink()
            done.write_bytes(_samples()[FILES.index(f"{CELL}/done.json")])
    return True


def numbers() -> None:
    results = collect(load_run(run()))
    for name, reason in results.missing:
        assert_one_line(name)
        assert_one_line(reason)
    names = {*results.cells.get("cell", ()), *(name for name, _ in results.missing)}
    assert "continuum_jps0.5_seed1" in names, names


def page() -> None:
    report = write(run())
    for sentence in (
        *report.answer,
        *report.failed_gates,
        *(reason for _, reason in report.missing),
    ):
        assert_one_line(sentence)
    injected.check_markup(report.path.read_text())


TARGETS = [
    Target("run folder", _make, partial(_with, read=numbers), 1.5),
    Target("report page", _make, partial(_with, read=page), 0.1),
]
