"""Counts how the programs of real agents ended, and how many of their tasks were resolved.

In: cells of real agents. Out: a row per cell. `programs.jsonl` has a line per program
(docs/reference/run-folder.md). `evaluation.json`, which exists if the user added an evaluation,
lists the tasks that SWE-bench counts as resolved by the cell's predictions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import orjson

from reports.numbers import DASH
from reports.run_folder.lines import json_lines, read_records
from reports.run_folder.read import CellRun, Run
from servers.basics.atomic import write_file
from servers.basics.errors import InvalidRunFolder
from servers.basics.json_object import JsonObject
from servers.basics.phrasing import share
from servers.basics.text import text
from servers.records.turns import TurnRecord

EVALUATION = "evaluation.json"
RESOLVED = "resolved_ids"


class AgentRow(NamedTuple):
    variant: str
    load: str
    seed: int
    programs: int
    turns: str
    """The mean number of turns per program."""
    statuses: str
    resolved: str


def agent_rows(run: Run, loads: Mapping[str, str]) -> list[AgentRow]:
    """Return a row per cell with agents. `loads` has the label of each cell's load."""
    named = [(cell, loads.get(cell.folder.name)) for cell in run.cells]
    return [_row(cell, load) for cell, load in named if load is not None and _programs(cell)]


def unequal_work(run: Run) -> str | None:
    """Return a caveat if the model's answers made the number of turns differ between cells."""
    agent = run.sweep.agent
    if agent is None or agent.guided:
        return None
    counts = {cell.folder.name: _turns_by_program(cell) for cell in run.cells}
    if len({tuple(sorted(turns.items())) for turns in counts.values()}) < 2:
        return None
    totals = {name: sum(turns.values()) for name, turns in counts.items()}
    least, most = min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__)
    return (
        "The model's answers determined the number of turns of each program, so cells have from"
        f" {totals[least]:,} turns ({least}) to {totals[most]:,} ({most}). Use --guided to give all"
        " policies the same work."
    )


def keep_evaluation(folder: Path, given: str) -> None:
    """Copy the report of SWE-bench's evaluation into a cell. `given` is `CELL=FILE`.

    Raises InvalidRunFolder.
    """
    name, equals, path = given.partition("=")
    cell = folder / name
    is_name = bool(equals) and "/" not in name and name not in ("", ".", "..")
    if not is_name or not (cell / "predictions.jsonl").is_file():
        raise InvalidRunFolder(
            f"--evaluation {given}: give CELL=FILE, with a cell of {folder} that ran agents"
        )
    ids = _resolved_ids(Path(path), f"--evaluation {path}")
    tasks = {text(line.get("task_id")) for line in json_lines(cell / "programs.jsonl")}
    if ids and tasks.isdisjoint(ids):
        raise InvalidRunFolder(
            f"--evaluation {path} resolves none of the cell's tasks; give the report of this cell"
        )
    write_file(cell / EVALUATION, orjson.dumps({RESOLVED: ids}))


def _resolved_ids(path: Path, label: str) -> list[str]:
    try:
        report = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRunFolder(f"{label}: {(error.strerror or str(error)).lower()}") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRunFolder(f"{label}: not JSON ({error})") from None
    ids = report.get(RESOLVED) if isinstance(report, dict) else None
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise InvalidRunFolder(f"{label} has no list {RESOLVED}; give SWE-bench's report")
    return ids


def _row(cell: CellRun, load: str) -> AgentRow:
    programs = _programs(cell)
    statuses = Counter(
        text(line.get("exit_status")) or text(line.get("error")) or DASH for line in programs
    )
    endings = ", ".join(f"{count:,} {status}" for status, count in statuses.most_common())
    turns = _turns_by_program(cell)
    mean = f"{sum(turns.values()) / len(programs):.1f}"
    variant, _, seed = cell.key
    return AgentRow(variant, load, seed, len(programs), mean, endings, _resolved(cell, programs))


def _resolved(cell: CellRun, programs: list[JsonObject]) -> str:
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


def _programs(cell: CellRun) -> list[JsonObject]:
    return list(json_lines(cell.folder / "programs.jsonl"))


def _turns_by_program(cell: CellRun) -> dict[str, int]:
    turns = read_records(cell.folder / "turns.jsonl", TurnRecord)
    return dict(Counter(turn.program_id for turn in turns))
