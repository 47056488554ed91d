"""Write the files of a cell into a run folder (docs/reference/run-folder.md).

`cell.json` is written first, lines of turns and events during the run, compressed in virtual time,
then the numbers, `SHA256SUMS`, and `done.json` last and atomically. A cell without `done.json`, or
with a file that does not match its checksum, runs again. The contents do not depend on the clock,
the process or the machine, so the same settings produce the same bytes.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Self

import orjson
import zstandard
from msgspec import Struct, to_builtins
from msgspec.json import encode

from harness.cells.locks import lock_folder
from reports.run_folder.lines import (
    CELL_NUMBERS,
    CHECKSUMS,
    COMPRESSED,
    LINES,
    checksums,
    without_lines,
)
from servers.basics.atomic import make_folder, sync, take_lock, write_all, write_file
from servers.basics.errors import CannotWrite, InvalidInput
from servers.basics.json_object import JsonObject
from servers.records.cell import CellRecord
from servers.records.done import DoneRecord, FailedRecord

FLUSH_LINES = 1000
FLUSH_S = 1.0
ORPHAN_TIMEOUT_S = 30.0
"""Time for a worker to exit after its parent was killed."""


def read_json(path: Path) -> JsonObject:
    try:
        value = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}: not a JSON object; this is not a run folder of Turnstile")
    return value


def write_json(path: Path, value: Struct | JsonObject) -> None:
    write_file(path, _json(value))


def _json(value: Struct | JsonObject) -> bytes:
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(to_builtins(value), option=options)


class Lines:
    """An append-only JSON-lines file, flushed each second and each thousand lines."""

    def __init__(self, path: Path, *, compressed: bool = False) -> None:
        """`compressed`: with Zstandard; the name of the file then ends in `.zst`."""
        self.path = path = path.with_name(path.name + COMPRESSED) if compressed else path
        self._compressor = zstandard.ZstdCompressor().compressobj() if compressed else None
        self._pending: list[bytes] = []
        self._written_bytes = 0
        """Size of the complete lines in the file."""
        self._flush_at_s = time.monotonic() + FLUSH_S
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            raise CannotWrite.of(path, error) from None
        self._open = True

    def append(self, line: Struct | JsonObject) -> None:
        self._pending.append(encode(line))
        if len(self._pending) >= FLUSH_LINES:
            self.flush()
        elif self._compressor is None and time.monotonic() >= self._flush_at_s:
            self.flush()  # in compressed files, the clock must not affect the bytes

    def flush(self) -> None:
        """Write the pending lines. After an error they stay pending, and the file ends with a
        complete line."""
        self._flush_at_s = time.monotonic() + FLUSH_S
        data = b"".join(line + b"\n" for line in self._pending)
        if self._compressor:
            data = self._compressor.compress(data)
        self._write(data)
        self._pending.clear()

    def _write(self, data: bytes) -> None:
        try:
            write_all(self._handle, data)
        except OSError as error:
            with suppress(OSError):
                os.lseek(self._handle, self._written_bytes, os.SEEK_SET)
                os.ftruncate(self._handle, self._written_bytes)
            raise CannotWrite.of(self.path, error) from None
        self._written_bytes += len(data)

    def close(self) -> None:
        """Sync the file to disk, so that `done.json` never exists without all lines."""
        if not self._open:
            return
        self._open = False
        try:
            self.flush()
            if self._compressor:
                self._write(self._compressor.flush())
            os.fsync(self._handle)
        except OSError as error:
            raise CannotWrite.of(self.path, error) from None
        finally:
            os.close(self._handle)


class NoLines:
    """Lines that are not kept."""

    def append(self, line: Struct | JsonObject) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class CellFolder:
    """The locked folder of one cell, from `cell.json` to `done.json`."""

    def __init__(
        self, path: Path, config: CellRecord, *, compressed: bool = False, keeps_lines: bool = True
    ) -> None:
        def lines(name: str) -> Lines | NoLines:
            return Lines(path / name, compressed=compressed) if keeps_lines else NoLines()

        self.path = path
        with ExitStack() as stack:
            stack.enter_context(_new_locked_folder(path))
            write_json(path / "cell.json", config)
            self.turns = stack.enter_context(closing(lines("turns.jsonl")))
            self.events = stack.enter_context(closing(lines("engine.jsonl")))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files. A failed cell keeps its lines."""
        self._stack.close()

    def finish(self, done: DoneRecord, numbers: bytes | None = None) -> None:
        """`numbers`: the content of `numbers.json.zst`, if the cell has it."""
        self.turns.close()
        self.events.close()
        if numbers is not None:
            write_file(self.path / CELL_NUMBERS, numbers)
        content = _json(done)
        write_file(self.path / CHECKSUMS, checksums(self.path, content))
        write_file(self.path / "done.json", content)
        remove_aside(self.path)


@contextmanager
def _new_locked_folder(path: Path) -> Iterator[None]:
    try:
        set_aside(path)
        os.mkdir(path)
        sync(path.parent)
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CannotWrite.of(path, error) from None
    try:
        take_lock(handle, 0)
        yield
    finally:
        os.close(handle)


def is_done(cell: Path) -> bool:
    return (cell / "done.json").is_file()


def remove_lines(cell: Path) -> None:
    """Remove the turns and the events of a finished cell, if it has its numbers."""
    if not (cell / CELL_NUMBERS).is_file():
        return
    path = cell / CHECKSUMS
    written = path.read_bytes()
    if (kept := without_lines(written)) != written:
        write_file(path, kept)
    for name in LINES:
        (cell / name).unlink(missing_ok=True)


def set_aside(cell: Path) -> None:
    """Rename the folder of an earlier attempt to `<cell>.aside-1`, `-2`, …

    Wait until no worker of a killed parent writes into the folder, because such a worker would
    open files by name in the new folder.
    """
    if not cell.exists():
        return
    handle = os.open(cell, os.O_RDONLY)
    try:
        if not lock_folder(cell, handle, ORPHAN_TIMEOUT_S):
            raise CannotWrite(
                f"cannot write {cell}: a process of an earlier run still writes to it; "
                "stop it first"
            )
        os.rename(cell, aside_of(cell))
    finally:
        os.close(handle)


def aside_of(cell: Path) -> Path:
    number = 1
    while (aside := cell.with_name(f"{cell.name}.aside-{number}")).exists():
        number += 1
    return aside


def remove_aside(cell: Path) -> None:
    """Remove the folders of earlier attempts at a finished cell."""
    for aside in cell.parent.glob(f"{glob.escape(cell.name)}.aside-*"):
        shutil.rmtree(aside, ignore_errors=True)


def mark_failed(cell: Path, error: str) -> None:
    """Write `failed.json` with the reason why a cell has no `done.json`. Resuming runs it again."""
    make_folder(cell)
    line, _, traceback = error.partition("\n")
    write_json(cell / "failed.json", FailedRecord(error=line, traceback=traceback or None))
