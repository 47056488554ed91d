"""Reads trace files that are larger than memory, in parts, and stores their programs.

In: JSON Lines in a format whose sessions are on one line, or on consecutive lines. Out: a stored
file (`traces.stored`), and the repairs. At most `PART_BYTES` and the longest session are in memory.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, cast

import msgspec

from servers.errors import InvalidTrace, TraceRejected
from traces.check import check
from traces.formats.registry import FIRST_BYTES, recognise
from traces.lenient import Repairs, one_line
from traces.program import Program
from traces.stored import Writer

PART_BYTES = 16 << 20
SESSION_KEYS = {"azure-copilot": "", "tracelab": "session_id"}
"""The formats that can be read in parts: the key that consecutive lines of a session have in
common, or "" if each line is a session."""
MAX_SESSION_BYTES = 256 << 20
PROGRESS_EVERY_S = 2.0


@dataclass
class Stored:
    """What was stored, and what was repaired or left out."""

    programs: int = 0
    turns: int = 0
    repairs: Repairs = field(default_factory=Repairs)


@dataclass(frozen=True, slots=True)
class Progress:
    read_bytes: int
    all_bytes: int
    elapsed_s: float
    programs: int

    @property
    def remaining_s(self) -> float:
        return self.elapsed_s * (self.all_bytes / max(self.read_bytes, 1) - 1)


def store(
    paths: Sequence[Path], out: Path, report: Callable[[Progress], None] | None = None
) -> Stored:
    """Store the programs of files in one pass. `report` is called every two seconds."""
    stored = Stored()
    ids: set[str] = set()
    all_bytes = sum(_size(path) for path in paths)
    before, began_s, reported_s = 0, time.monotonic(), time.monotonic()
    partial = out.with_name(f".{out.name}.partial")
    try:
        with Writer(partial) as writer:
            for path in paths:
                with path.open("rb") as file:
                    for programs in _parts(path, file, stored.repairs):
                        for program in programs:
                            _add(program, writer, ids, stored)
                        now_s = time.monotonic()
                        if report and now_s - reported_s >= PROGRESS_EVERY_S:
                            reported_s = now_s
                            read = before + file.tell()
                            report(Progress(read, all_bytes, now_s - began_s, stored.programs))
                before += _size(path)
        if not stored.programs:
            raise InvalidTrace(f"{one_line(str(paths[0]))}: no program in any file")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return stored


def _size(path: Path) -> int:
    if path.is_dir():
        raise InvalidTrace(f"{one_line(str(path))}: is a folder; give its files")
    try:
        return path.stat().st_size
    except OSError as error:
        raise InvalidTrace(f"{one_line(str(path))}: cannot be read ({error.strerror})") from None


def _add(program: Program, writer: Writer, ids: set[str], stored: Stored) -> None:
    if program.id in ids:
        stored.repairs.add("a session that was read before, or whose lines are not together: "
                           "left out")  # fmt: skip
        return
    if program.fork is not None and program.fork.program_id not in ids:
        stored.repairs.add("a sub-agent whose parent was left out: left out")
        return
    ids.add(program.id)
    writer.add(program)
    stored.programs += 1
    stored.turns += len(program.turns)


def _parts(path: Path, file: IO[bytes], repairs: Repairs) -> Iterator[list[Program]]:
    """Yield the programs of each part of a file."""
    lines = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
    where = one_line(str(path))
    try:
        first = lines.readline(PART_BYTES)
        known = recognise(first[:FIRST_BYTES])
        if known is None or known[0] not in SESSION_KEYS:
            names = " and ".join(SESSION_KEYS)
            raise InvalidTrace(
                f"{where}: cannot be read in parts; only JSON Lines of {names} can. Split the "
                "file, and use bench traces convert"
            )
        name, format = known
        for number, part in enumerate(_split(first, lines, SESSION_KEYS[name])):
            try:
                programs = format.load(part, f"{path.name.partition('.')[0]}-{number}", repairs)
                check(programs)
            except (TraceRejected, InvalidTrace) as error:
                repairs.add(f"a part of {path.name}: left out ({one_line(str(error))})")
                continue
            yield [replace(program, source=path.name) for program in programs]
    except (EOFError, OSError) as error:
        raise InvalidTrace(f"{where}: cannot be read ({one_line(str(error))})") from None


def _split(first: bytes, lines: IO[bytes], key: str) -> Iterator[bytes]:
    """Split a file into parts of whole sessions. Raises InvalidTrace for one that is too long."""
    part, size = [first], len(first)
    while line := lines.readline(PART_BYTES):
        full = size + len(line) > PART_BYTES
        if full and (not key or _session(line, key) != _session(part[-1], key)):
            yield b"".join(part)
            part, size = [], 0
        part.append(line)
        size += len(line)
        if size > MAX_SESSION_BYTES:
            raise InvalidTrace(f"a session is larger than {MAX_SESSION_BYTES >> 20} MiB; split it")
    yield b"".join(part)


def _session(line: bytes, key: str) -> object:
    if not key:
        return None
    try:
        return msgspec.json.decode(line, type=dict[str, object]).get(key)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
