"""Cells of real agents in; how their programs ended, and what of their work was right, out.

`programs.jsonl` has a line per program (docs/reference/run-folder.md). `evaluation.json`, where
the user brought one, holds what SWE-bench's evaluation of the cell's predictions resolved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from reports.phrasing import share
from reports.run_folder.atomic import write_file
from reports.run_folder.lines import json_lines, read_records
from reports.run_folder.read import Cell, Run
from servers.errors import InvalidRunFolder
from servers.records import TurnRecord
from traces.lenient import text

EVALUATION = "evaluation.json"
RESOLVED = "resolved_ids"


class Row(NamedTuple):
    variant: str
    load: str
    seed: int
    programs: int
    turns: str
    """Per program: mean."""
    statuses: str
    resolved: str


def agent_rows(run: Run, loads: Mapping[str, str]) -> list[Row]:
    """A row per cell with agents; `loads`: by cell, as the report words it."""
    named = [(cell, loads.get(cell.folder.name)) for cell in run.cells]
    return [_row(cell, load) for cell, load in named if load is not None and _programs(cell)]


def unpaired(run: Run) -> str | None:
    """A doubt where variants were not given the same work: answers of a model decide how many
    turns a program takes."""
    agent = run.sweep.get("agent")
    if not isinstance(agent, Mapping) or agent.get("guided"):
        return None
    counts = {cell.folder.name: _turns_by_program(cell) for cell in run.cells}
    if len({tuple(sorted(turns.items())) for turns in counts.values()}) < 2:
        return None
    totals = {name: sum(turns.values()) for name, turns in counts.items()}
    least, most = min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__)
    return (
        "The model's answers decided how many turns each program took, so cells differ in their"
        f" work: from {totals[least]:,} turns ({least}) to {totals[most]:,} ({most}). A guided run"
        " gives every policy the same."
    )


def keep_evaluation(folder: Path, given: str) -> None:
    """`CELL=FILE`: the report that SWE-bench's evaluation wrote for the cell's predictions. Raises
    InvalidRunFolder."""
    name, equals, path = given.partition("=")
    cell = folder / name
    is_name = bool(equals) and "/" not in name and name not in ("", ".", "..")
    if not is_name or not (cell / "predictions.jsonl").is_file():
        raise InvalidRunFolder(
            f"--evaluation {given}: give CELL=FILE, with a cell of {folder} that had agents"
        )
    ids = _resolved_ids(Path(path), f"--evaluation {path}")
    tasks = {text(line.get("task_id")) for line in json_lines(cell / "programs.jsonl")}
    if ids and tasks.isdisjoint(ids):
        raise InvalidRunFolder(
            f"--evaluation {path}: resolves none of the cell's tasks; is it another's?"
        )
    write_file(cell / EVALUATION, orjson.dumps({RESOLVED: ids}))


def _resolved_ids(path: Path, told: str) -> list[str]:
    try:
        said = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRunFolder(f"{told}: {(error.strerror or str(error)).lower()}") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRunFolder(f"{told}: not JSON ({error})") from None
    ids = said.get(RESOLVED) if isinstance(said, dict) else None
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise InvalidRunFolder(f"{told}: has no list {RESOLVED}; give SWE-bench's report")
    return ids


def _row(cell: Cell, load: str) -> Row:
    programs = _programs(cell)
    statuses = Counter(
        text(line.get("exit_status")) or text(line.get("error")) or "–" for line in programs
    )
    told = ", ".join(f"{count:,} {status}" for status, count in statuses.most_common())
    turns = _turns_by_program(cell)
    mean = f"{sum(turns.values()) / len(programs):.1f}"
    variant, _, seed = cell.key
    return Row(variant, load, seed, len(programs), mean, told, _resolved(cell, programs))


def _resolved(cell: Cell, programs: list[dict[str, Any]]) -> str:
    path = cell.folder / EVALUATION
    if not path.is_file():
        return "not evaluated"
    try:
        resolved = set(_resolved_ids(path, str(path)))
    except InvalidRunFolder:
        return "its evaluation cannot be read"
    tasks = {text(line.get("task_id")) for line in programs}
    right = len(tasks & resolved)
    return f"{right} of {len(tasks)} ({share(right / len(tasks))})"


def _programs(cell: Cell) -> list[dict[str, Any]]:
    return list(json_lines(cell.folder / "programs.jsonl"))


def _turns_by_program(cell: Cell) -> dict[str, int]:
    turns = read_records(cell.folder / "turns.jsonl", TurnRecord)
    return dict(Counter(turn.program_id for turn in turns))
