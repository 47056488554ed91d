"""Writing a run folder (docs/reference/run-folder.md): what a cell leaves on disk, and in which
order.

`cell.json` comes first, lines of `turns.jsonl` and `engine.jsonl` as things happen, `done.json`
last and atomically: a cell without it is run again. No byte depends on the clock, the process or
the machine, so that the same question leaves the same bytes.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import orjson
from msgspec import Struct
from msgspec.json import encode

from reports.run_folder.atomic import hold, make_folder, sync, write_all, write_file
from servers.errors import CannotWrite, InvalidInput

FLUSH_LINES = 1000
FLUSH_S = 1.0
LEFT_WITHIN_S = 30.0
"""How long a worker may outlive its killed parent."""


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}: not a JSON object; this is no run folder of ours")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_file(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


class Lines:
    """A JSON-lines file that is appended to, flushed each second or thousand lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._written_bytes = 0
        """In whole lines."""
        self._flush_at_s = time.monotonic() + FLUSH_S
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            raise CannotWrite.of(path, error) from None
        self._open = True

    def append(self, line: Struct | Mapping[str, Any]) -> None:
        self._pending.append(encode(line))
        if len(self._pending) >= FLUSH_LINES or time.monotonic() >= self._flush_at_s:
            self.flush()

    def flush(self) -> None:
        """What cannot be written is kept for the next time; no line is left torn."""
        self._flush_at_s = time.monotonic() + FLUSH_S
        data = b"".join(line + b"\n" for line in self._pending)
        try:
            write_all(self._handle, data)
        except OSError as error:
            with suppress(OSError):
                os.lseek(self._handle, self._written_bytes, os.SEEK_SET)
                os.ftruncate(self._handle, self._written_bytes)
            raise CannotWrite.of(self.path, error) from None
        self._written_bytes += len(data)
        self._pending.clear()

    def close(self) -> None:
        """Down to the disk, so that a `done.json` never outlives its lines."""
        if not self._open:
            return
        self._open = False
        try:
            self.flush()
            os.fsync(self._handle)
        except OSError as error:
            raise CannotWrite.of(self.path, error) from None
        finally:
            os.close(self._handle)


class CellFolder:
    """The folder of one cell, from `cell.json` to `done.json`; nobody else writes it meanwhile."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        with ExitStack() as begun:
            begun.enter_context(_cell_of_ours(path))
            write_json(path / "cell.json", config)
            self.turns = begun.enter_context(closing(Lines(path / "turns.jsonl")))
            self.events = begun.enter_context(closing(Lines(path / "engine.jsonl")))
            self._held = begun.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Also where a cell failed: its lines up to there say how it came to that."""
        self._held.close()

    def finish(self, done: Mapping[str, Any]) -> None:
        self.turns.close()
        self.events.close()
        write_json(self.path / "done.json", done)
        remove_aside(self.path)


@contextmanager
def _cell_of_ours(path: Path) -> Iterator[None]:
    try:
        set_aside(path)
        os.mkdir(path)
        sync(path.parent)
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CannotWrite.of(path, error) from None
    try:
        hold(handle, 0)
        yield
    finally:
        os.close(handle)


def is_done(cell: Path) -> bool:
    return (cell / "done.json").is_file()


def set_aside(cell: Path) -> None:
    """Keeps the part of an earlier attempt as `<cell>.aside-1`, `-2`, …

    A worker whose parent was killed a moment ago may still write there, and would go on by name
    in the new folder: its end is waited for.
    """
    if not cell.exists():
        return
    handle = os.open(cell, os.O_RDONLY)
    try:
        if not _held(cell, handle, LEFT_WITHIN_S):
            raise CannotWrite(
                f"cannot write {cell}: a process of an earlier run still writes it; end that first"
            )
        number = 1
        while (aside := cell.with_name(f"{cell.name}.aside-{number}")).exists():
            number += 1
        os.rename(cell, aside)
    finally:
        os.close(handle)


def remove_aside(cell: Path) -> None:
    """Removes what earlier attempts at a finished cell left."""
    for aside in cell.parent.glob(f"{glob.escape(cell.name)}.aside-*"):
        shutil.rmtree(aside, ignore_errors=True)


def _held(folder: Path, handle: int, within_s: float) -> bool:
    try:
        return hold(handle, within_s)
    except OSError as error:  # of a file system without locks of folders, such as NFS
        raise CannotWrite.of(folder, error) from None


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
        raise CannotWrite.of(folder, error) from None
    try:
        if not _held(folder, handle, 0):
            raise InvalidInput(
                f"{folder}: another bench is writing it; wait for its end, or choose another --out"
            )
        yield
    finally:
        os.close(handle)
