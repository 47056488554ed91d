"""Tasks for agents, from a file: what each program has to do.

In: JSON lines (or a JSON list) of SWE-bench rows (`instance_id`, `problem_statement`, and
`image_name` or `docker_image`, as `mini-extra swebench` reads them), or of `id` and `task`; with
`workspace`, a folder to begin in, copied. Out: tasks by id, in the file's order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from servers.errors import InvalidInput
from traces import Program
from traces.lenient import one_line

IDS = ("instance_id", "id", "task_id", "program_id")
LONGEST = 190
"""Of an id: the gateway takes 200, and a repeated program's has some more."""
TEXTS = ("problem_statement", "task", "prompt", "question")
IMAGES = ("image_name", "docker_image", "image")
SWE_BENCH_IMAGE = "docker.io/swebench/sweb.eval.x86_64.{}:latest"
"""Of a row of SWE-bench's that names none; `__` of its id may not stand in an image's name."""
REMEDY = "a task is a JSON object with an id (instance_id) and a text (problem_statement)"


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    text: str
    image: str | None = None
    workspace: Path | None = None


@dataclass(frozen=True, slots=True)
class Tasks:
    name: str
    sha256: str
    tasks: tuple[Task, ...]

    def programs(self) -> tuple[Program, ...]:
        """Programs of which nobody knows yet what they will ask."""
        return tuple(Program(task.id, (), source=self.name) for task in self.tasks)


def read_tasks(path: Path) -> Tasks:
    """Raises a ValueError that names file, row and field."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"--tasks {path}: {(error.strerror or str(error)).lower()}") from None
    rows = _rows(data, path)
    tasks = tuple(_task(row, number, path) for number, row in enumerate(rows, 1))
    if not tasks:
        raise InvalidInput(f"--tasks {path}: no task in it; {REMEDY}")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise InvalidInput(
                f"--tasks {path}: two tasks are called {task.id}; give each its own id"
            )
        seen.add(task.id)
    return Tasks(path.name, hashlib.sha256(data).hexdigest(), tasks)


def tasks_of(programs: Sequence[Program]) -> Tasks:
    """The tasks that recorded programs had: their first message that is not the system's."""
    tasks = tuple(
        Task(p.id, next((m.content for m in p.messages if m.role != "system"), p.id))
        for p in programs
        if p.fork is None
    )
    return Tasks("recorded", "", tasks)


def _rows(data: bytes, path: Path) -> list[Any]:
    if data.lstrip()[:1] == b"[":
        try:
            whole = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"--tasks {path}: not JSON ({error})") from None
        return whole if isinstance(whole, list) else []
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"--tasks {path}, line {number}: not JSON ({error})") from None
    return rows


def _task(row: Any, number: int, path: Path) -> Task:
    where = f"--tasks {path}, task {number}"
    if not isinstance(row, dict):
        raise InvalidInput(f"{where}: {type(row).__name__}, not an object; {REMEDY}")
    id = _first(row, IDS)
    if id is None:
        raise InvalidInput(f"{where}: none of {', '.join(IDS)} is a text; {REMEDY}")
    if len(id) > LONGEST or not id.isprintable():
        raise InvalidInput(
            f"{where}: {id[:40]!a}: an id has at most {LONGEST} printable characters"
        )
    text = _first(row, TEXTS)
    if text is None:
        raise InvalidInput(f"{where} ({id}): none of {', '.join(TEXTS)} is a text; {REMEDY}")
    workspace = _first(row, ("workspace",))
    begun = None if workspace is None else _folder(path.parent / workspace)
    if workspace is not None and begun is None:
        raise InvalidInput(f"{where} ({id}): workspace {one_line(workspace)}: no such folder")
    image = _first(row, IMAGES)
    if image is None and "base_commit" in row:
        image = SWE_BENCH_IMAGE.format(id.replace("__", "_1776_").lower())
    return Task(id, text, image, begun)


def _folder(path: Path) -> Path | None:
    try:
        return path.resolve() if path.is_dir() else None
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return None


def _first(row: dict[str, Any], names: Sequence[str]) -> str | None:
    return next((row[n] for n in names if isinstance(row.get(n), str) and row[n].strip()), None)
