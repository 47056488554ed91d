"""Reads sets of traces that are larger than memory, and stores their programs.

In: files of any format, one at a time. Out: a stored file (`traces.stored`), and repairs. Files in
a format whose sessions are on one line, or on consecutive lines, are read in parts: at most
`PART_BYTES` and the longest session are in memory. Other files are loaded as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec

from servers.basics.errors import CannotWrite, InvalidTrace, TraceRejected
from servers.basics.text import one_line
from traces.anonymize import Names
from traces.assumptions import Assumptions
from traces.check import check
from traces.columns import Columns, parse_columns
from traces.compressed import DAMAGED, decompressed
from traces.files import TraceFile, find_files, names_in_messages
from traces.formats.registry import FIRST_BYTES, IncompleteFormat, abouts, recognise
from traces.lenient import Repairs
from traces.merge import UniqueIds, without_messages
from traces.program import Program
from traces.read import Note, contents, gap_source_of, load_file
from traces.stored import Writer
from traces.token_counts import counter_of

PART_BYTES = 16 << 20
MAX_SESSION_BYTES = 256 << 20
PROGRESS_EVERY_S = 2.0
NO_PREFIXES_OF_TURNS = (
    "a packed file stores only one prefix per program: what single turns share (block hashes) is"
    " lost"
)
Load = Callable[[bytes, str, Repairs], list[Program]]


@dataclass
class Stored:
    """The number of stored programs, and the repairs and omissions."""

    programs: int = 0
    turns: int = 0
    repairs: list[Note] = field(default_factory=list)
    rejections: list[Note] = field(default_factory=list)
    losses: Repairs = field(default_factory=Repairs)
    """Sentences on how the stored programs differ from the programs that were read."""

    def add(self, program: Program) -> None:
        self.programs += 1
        self.turns += len(program.turns)
        for turn in program.turns:
            if turn.prefixes:
                self.losses.add(NO_PREFIXES_OF_TURNS)

    def add_notes(self, name: str, programs: int, error: str, repairs: Repairs) -> None:
        """Add the notes on a file: its rejection if none of its programs is stored."""
        reasons = repairs.reasons()
        if not programs:
            why = error or "; ".join(reasons[:3]) or "contains no program"
            self.rejections.append(Note(name, one_line(why)))
            return
        if error:
            reasons.append(f"the rest is left out ({error})")
        self.repairs += [Note(name, one_line(reason)) for reason in reasons]


@dataclass(frozen=True, slots=True)
class _Reading:
    assumptions: Assumptions
    format: str | None
    columns: Columns | None
    names: Names | None
    """Numbers the names of private histories; None to keep them."""


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
    paths: Sequence[Path | str],
    out: Path,
    report: Callable[[Progress], None] | None = None,
    *,
    format: str | None = None,
    columns: str | None = None,
    tokenizer: Path | None = None,
    synthesise_gaps: str | None = None,
    keep_names: bool = False,
) -> Stored:
    """Store the programs of files and folders in one pass. `report` is called every two seconds;
    for the other arguments, see `traces.read_traces`."""
    stored = Stored()
    ids = UniqueIds()
    files = find_files(paths, tables=columns is not None)
    reading = _Reading(
        Assumptions(counter_of(tokenizer), gap_source_of(synthesise_gaps)[0]),
        format,
        None if columns is None else parse_columns(columns),
        None if keep_names else Names(),
    )
    labels = names_in_messages(files, keep_names=keep_names)
    sizes = [sum(part.stat().st_size for part in file.parts or (file.path,)) for file in files]
    before, began_s, reported_s = 0, time.monotonic(), time.monotonic()
    partial = out.with_name(f".{out.name}.partial")
    try:
        with Writer(partial) as writer:
            for file, name, size in zip(files, labels, sizes, strict=True):
                for read_bytes, programs in _noted_parts(file, name, reading, ids, stored):
                    for program in programs:
                        writer.add(program)
                        stored.add(program)
                    now_s = time.monotonic()
                    if report and now_s - reported_s >= PROGRESS_EVERY_S:
                        reported_s = now_s
                        read = before + read_bytes
                        report(Progress(read, sum(sizes), now_s - began_s, stored.programs))
                before += size
        if not stored.programs:
            reasons = "; ".join(f"{note.file}: {note.reason}" for note in stored.rejections[:3])
            raise InvalidTrace(f"{one_line(str(paths[0]))}: no program in any file ({reasons})")
        partial.replace(out)
    except OSError as error:
        if error.filename in (None, *map(str, (partial, *partial.parents))):
            raise CannotWrite.of(out, error) from None
        raise  # a file that should be read
    finally:
        with suppress(OSError):  # no such folder, or a disk that is read-only
            partial.unlink()
    return stored


def _noted_parts(
    file: TraceFile, name: str, reading: _Reading, ids: UniqueIds, stored: Stored
) -> Iterator[tuple[int, list[Program]]]:
    """Yield the parts of a file. After the last part is stored, add the notes on the file."""
    repairs, stored_before, error = Repairs(), stored.programs, ""
    try:
        yield from _parts(file, reading, ids, repairs)
    except TraceRejected as rejected:
        error = str(rejected)
    stored.add_notes(name, stored.programs - stored_before, error, repairs)


def _parts(
    file: TraceFile, reading: _Reading, ids: UniqueIds, repairs: Repairs
) -> Iterator[tuple[int, list[Program]]]:
    """Yield the programs of each part of a file, and the number of bytes read so far. Raises
    TraceRejected."""
    try:
        detected = not (file.parts or reading.format or reading.columns)
        found = _format_in_parts(file.path) if detected else None
        if found is None:
            yield 0, ids.rename(_whole(file, reading, repairs), repairs)
            return
        key, load = found
        with file.path.open("rb") as raw:
            for number, part in enumerate(_split(decompressed(file.path, raw), key)):
                name = f"{file.path.name.partition('.')[0]}-{number}"
                programs = _part(part, file.path, name, load, repairs)
                yield raw.tell(), list(_first_read(programs, ids.used, repairs))
    except RecursionError:
        raise TraceRejected("nested too deeply") from None
    except InvalidTrace as error:
        raise TraceRejected(str(error).removeprefix(f"{file.path.name}, ")) from None
    except (*DAMAGED, OSError) as error:
        raise TraceRejected(f"cannot be read to its end ({error})") from None


def _format_in_parts(path: Path) -> tuple[str, Load] | None:
    """Return the session key and the loader of a file's format if it can be read in parts."""
    with path.open("rb") as raw:
        known = recognise(decompressed(path, raw).read(FIRST_BYTES))
    if known is None or (about := abouts().get(known[0])) is None or about.session_key is None:
        return None
    format = known[1]
    return None if isinstance(format, IncompleteFormat) else (about.session_key, format.load)


def _whole(file: TraceFile, reading: _Reading, repairs: Repairs) -> list[Program]:
    how = reading.assumptions, reading.format, reading.columns
    format, programs = load_file(contents(file), file.path, repairs, *how)
    if not programs:
        raise TraceRejected(f"{format}: contains no program")
    if file.is_private and reading.names is not None:
        programs = reading.names.numbered(programs)
    return without_messages(programs)


def _part(data: bytes, path: Path, name: str, load: Load, repairs: Repairs) -> list[Program]:
    failed = repairs.laws.failed_counts
    try:
        programs = load(data, name, repairs)
        check(programs)
    except (TraceRejected, InvalidTrace) as error:
        repairs.add(f"a part: left out ({one_line(str(error))})")
        return []
    inferred = repairs.laws.failed_counts > failed
    return [replace(p, source=path.name, inferred_tokens=inferred) for p in programs]


def _first_read(programs: Sequence[Program], ids: set[str], repairs: Repairs) -> Iterator[Program]:
    for program in programs:
        if program.id in ids:
            repairs.add("a session that was read before, or whose lines are not together: left out")
        elif program.fork is not None and program.fork.program_id not in ids:
            repairs.add("a sub-agent whose parent was left out: left out")
        else:
            ids.add(program.id)
            yield program


def _split(lines: IO[bytes], key: str) -> Iterator[bytes]:
    """Split a file into parts of whole sessions. Raises InvalidTrace if a session is too long."""
    part = [lines.readline(PART_BYTES)]
    size = len(part[0])
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
