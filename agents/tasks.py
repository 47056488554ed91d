"""Reads the tasks of agents from a file.

In: JSON Lines (or a JSON list) of SWE-bench rows (`instance_id`, `problem_statement`, and
`image_name` or `docker_image`, like `mini-extra swebench`), or of `id` and `task`. `workspace`,
which is optional, is a folder to copy. Out: `Tasks`, in the order of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from servers.basics.errors import InvalidInput
from servers.basics.text import one_line
from traces import Program

IDS = ("instance_id", "id", "task_id", "program_id")
MAX_ID_CHARS = 190
"""The gateway's limit is 200, and copies of a program have ids a few characters longer."""
TEXTS = ("problem_statement", "task", "prompt", "question")
IMAGES = ("image_name", "docker_image", "image")
SWE_BENCH_IMAGE = "docker.io/swebench/sweb.eval.x86_64.{}:latest"
"""The image of a SWE-bench row without one. Names of images cannot contain the `__` of an id."""
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
        """Return programs whose turns are not known in advance."""
        return tuple(Program(task.id, (), source=self.name) for task in self.tasks)


def read_tasks(path: Path) -> Tasks:
    """Raises InvalidInput with the file, row and field."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"--tasks {path}: {(error.strerror or str(error)).lower()}") from None
    rows = _rows(data, path)
    tasks = tuple(_task(row, number, path) for number, row in enumerate(rows, 1))
    if not tasks:
        raise InvalidInput(f"--tasks {path}: contains no task; {REMEDY}")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise InvalidInput(
                f"--tasks {path}: two tasks have the id {task.id}; make the ids unique"
            )
        seen.add(task.id)
    return Tasks(path.name, hashlib.sha256(data).hexdigest(), tasks)


def tasks_of(programs: Sequence[Program]) -> Tasks:
    """Return the tasks of recorded programs: the first message after the system messages."""
    tasks = tuple(
        Task(p.id, next((m.content for m in p.messages if m.role != "system"), p.id))
        for p in programs
        if p.fork is None
    )
    return Tasks("recorded", "", tasks)


def _rows(data: bytes, path: Path) -> list[Any]:
    if data.lstrip()[:1] == b"[":
        return list(_parse(data, f"--tasks {path}"))
    return [
        _parse(line, f"--tasks {path}, line {number}")
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    ]


def _parse(data: bytes, where: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{where}: not JSON ({error}); give JSON Lines or a JSON list") from None


def _task(row: Any, number: int, path: Path) -> Task:
    where = f"--tasks {path}, task {number}"
    if not isinstance(row, dict):
        raise InvalidInput(f"{where}: {type(row).__name__}, not an object; {REMEDY}")
    id = _first(row, IDS)
    if id is None:
        raise InvalidInput(f"{where}: none of {', '.join(IDS)} is a text; {REMEDY}")
    if len(id) > MAX_ID_CHARS or not id.isprintable():
        raise InvalidInput(
            f"{where}: {id[:40]!a}: an id has at most {MAX_ID_CHARS} printable characters"
        )
    text = _first(row, TEXTS)
    if text is None:
        raise InvalidInput(f"{where} ({id}): none of {', '.join(TEXTS)} is a text; {REMEDY}")
    workspace = _first(row, ("workspace",))
    source = None if workspace is None else _folder(path.parent / workspace)
    if workspace is not None and source is None:
        raise InvalidInput(f"{where} ({id}): workspace {one_line(workspace)}: no such folder")
    image = _first(row, IMAGES)
    if image is None and "base_commit" in row:
        image = SWE_BENCH_IMAGE.format(id.replace("__", "_1776_").lower())
    return Task(id, text, image, source)


def _folder(path: Path) -> Path | None:
    try:
        return path.resolve() if path.is_dir() else None
    except (OSError, ValueError):  # the name is too long, or contains NUL
        return None


def _first(row: dict[str, Any], names: Sequence[str]) -> str | None:
    return next((row[n] for n in names if isinstance(row.get(n), str) and row[n].strip()), None)
