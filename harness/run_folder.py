"""Writing a run folder (docs/run-folder.md): what a cell leaves on disk, and in which order.

`cell.json` comes first, lines of `turns.jsonl` and `engine.jsonl` as things happen, `done.json`
last and atomically: a cell without it is run again. No byte depends on the clock, the process or
the machine, so that the same question leaves the same bytes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import orjson

FLUSH_LINES = 1000
FLUSH_S = 1.0


class Unwritable(ValueError):
    """The output folder cannot take what has to be written."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> Unwritable:
        reason = (error.strerror or str(error)).lower()
        return cls(f"cannot write {path}: {reason}; free some space or choose another --out")


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object; this is no run folder of ours")
    return value


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable.of(path, error) from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all, whenever the process is killed."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise Unwritable.of(path, error) from None


class Lines:
    """A JSON-lines file that is appended to, flushed each second or thousand lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._flush_at_s = time.monotonic() + FLUSH_S
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise Unwritable.of(path, error) from None

    def append(self, line: Mapping[str, Any]) -> None:
        self._pending.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        if len(self._pending) >= FLUSH_LINES or time.monotonic() >= self._flush_at_s:
            self.flush()

    def flush(self) -> None:
        data = memoryview(b"".join(self._pending))
        self._pending.clear()
        self._flush_at_s = time.monotonic() + FLUSH_S
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise Unwritable.of(self.path, error) from None

    def close(self) -> None:
        """Down to the disk, so that a `done.json` never outlives its lines."""
        try:
            if not self._file.closed:
                self.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise Unwritable.of(self.path, error) from None
        finally:
            self._file.close()


class CellFolder:
    """The folder of one cell, from `cell.json` to `done.json`."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        try:
            set_aside(path)
            path.mkdir(parents=True)
        except OSError as error:
            raise Unwritable.of(path, error) from None
        write_json(path / "cell.json", config)
        self.turns = Lines(path / "turns.jsonl")
        self.events = Lines(path / "engine.jsonl")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Also where a cell failed: its lines up to there say how it came to that."""
        self.turns.close()
        self.events.close()

    def finish(self, done: Mapping[str, Any]) -> None:
        self.turns.close()
        self.events.close()
        write_json(self.path / "done.json", done)


def is_done(cell: Path) -> bool:
    return (cell / "done.json").is_file()


def set_aside(cell: Path) -> None:
    """Keeps the part of an earlier attempt as `<cell>.aside-1`, `-2`, …"""
    if not cell.exists():
        return
    number = 1
    while (aside := cell.with_name(f"{cell.name}.aside-{number}")).exists():
        number += 1
    cell.rename(aside)


def mark_failed(cell: Path, error: str) -> None:
    """`failed.json` says why a cell has no `done.json`; it is run again on resume."""
    make_folder(cell)
    line, _, rest = error.partition("\n")
    write_json(cell / "failed.json", {"error": line, "traceback": rest or None})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One sweep per folder. The lock is the kernel's and on the folder itself, so that it leaves
    no file and ends with its process, however that ends."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise Unwritable.of(folder, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder}: another bench is writing it; wait for its end, or choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)
