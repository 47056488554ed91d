"""Stores programs in a file that loads in seconds, for sets of hundreds of thousands of programs.

In: programs, one at a time. Out: a zip file (suffix .packed) with `turns`, fixed-size records of
all turns; `programs`, a JSON line per program; and `header`, the tools and shared prefixes.
Commands, messages and prefixes of turns are not stored. In memory a turn takes 25 bytes.
`packed` keeps programs of other files in little memory: compressed, and decompressed at each access
to a turn.
"""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import IO, overload

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from servers.basics.errors import TraceRejected
from servers.basics.text import cut, one_line
from traces.lenient import MAX_GAP_S, MAX_TOKENS, Ends, ends_text, read_up_to
from traces.program import Fork, Program, Provenance, SharedPrefix, Turn

SUFFIX = ".packed"
FORMAT = "turnstile-packed-1"
TURN = np.dtype([
    ("prompt", "<i4"), ("output", "<i4"), ("kept", "<i4"), ("gap_s", "<f8"), ("tools", "<i4"),
    ("provenance", "u1"),
])  # fmt: skip
PROVENANCES = tuple(Provenance)
MAX_STORED_BYTES = 1 << 30
"""Maximum size of a member of the file, decompressed."""
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(KeyError, ValueError, EOFError, OSError, RuntimeError),  # NotImplementedError is one of these
)
"""Errors for a file that is not a zip file, or a damaged one."""
Turns = NDArray[np.void]


class _Header(msgspec.Struct):
    format: str
    tools: list[tuple[str, ...]]
    prefixes: list[tuple[str, int]]


class _Stored(msgspec.Struct, array_like=True):
    id: str
    turns: int
    prefix: int | None
    """Index into the header's prefixes."""
    start_s: float | None
    fork: tuple[str, int, float, int | None, str] | None
    source: str
    inferred_tokens: bool = False


class StoredTurns(Sequence[Turn]):
    """Turns that are created when they are accessed."""

    __slots__ = ("_records", "_tools")

    def __init__(self, records: Turns, tools: Sequence[tuple[str, ...]]) -> None:
        self._records = records
        self._tools = tools

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Turn]:
        for prompt, output, kept, gap_s, tools, provenance in self._records.tolist():
            yield Turn(
                prompt, output, kept, self._tools[tools], None, gap_s, PROVENANCES[provenance]
            )

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, index: int | slice) -> Turn | tuple[Turn, ...]:
        if isinstance(index, slice):
            return tuple(StoredTurns(self._records[index], self._tools))
        at = range(len(self))[index]
        return next(iter(StoredTurns(self._records[at : at + 1], self._tools)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class Writer:
    """Writes programs that have been checked. Holds one JSON line per program in memory."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self._turns: IO[bytes] = self._zip.open("turns", "w", force_zip64=True)
        self._lines: list[bytes] = []
        self._tools: dict[tuple[str, ...], int] = {}
        self._prefixes: dict[str, int] = {}
        self._lengths: list[int] = []
        self._encoder = msgspec.json.Encoder()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._turns.close()
        if type is None:
            prefixes = list(zip(self._prefixes, self._lengths, strict=True))
            header = _Header(FORMAT, list(self._tools), prefixes)
            self._zip.writestr("programs", b"\n".join(self._lines))
            self._zip.writestr("header", self._encoder.encode(header))
        self._zip.close()

    def add(self, program: Program) -> None:
        codes = {name: code for code, name in enumerate(PROVENANCES)}
        rows = [
            (t.prompt_tokens, t.output_tokens, t.kept_tokens, t.tool_gap_s,
             self._tools.setdefault(t.tools, len(self._tools)), codes[t.gap_provenance])
            for t in program.turns
        ]  # fmt: skip
        self._turns.write(np.array(rows, TURN).tobytes())
        stored = _Stored(
            program.id,
            len(rows),
            self._prefix(program.prefix),
            program.recorded_start_s,
            _fork_fields(program.fork),
            program.source,
            program.inferred_tokens,
        )
        self._lines.append(self._encoder.encode(stored))

    def _prefix(self, prefix: SharedPrefix | None) -> int | None:
        """Return the index of a prefix, whose length is the shortest with its id."""
        if prefix is None:
            return None
        index = self._prefixes.setdefault(prefix.id, len(self._lengths))
        if index == len(self._lengths):
            self._lengths.append(prefix.tokens)
        self._lengths[index] = min(self._lengths[index], prefix.tokens)
        return index


def _fork_fields(fork: Fork | None) -> tuple[str, int, float, int | None, str] | None:
    if fork is None:
        return None
    provenance = fork.delay_provenance.value
    return fork.program_id, fork.after_turn, fork.delay_s, fork.joined_before_turn, provenance


def read_stored(data: bytes) -> list[Program]:
    """Return the programs of a file. Raises TraceRejected if it is damaged or not valid."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            header = msgspec.json.decode(_member(archive, "header", ends_text), type=_Header)
            lines = msgspec.json.Decoder(_Stored).decode_lines(
                _member(archive, "programs", ends_text)
            )
            turns = np.frombuffer(_member(archive, "turns", None), TURN)
    except DAMAGED as error:
        raise TraceRejected(f"not a complete packed file ({one_line(str(error))})") from None
    header.tools = [tuple(map(cut, tools)) for tools in header.tools]
    if header.format != FORMAT:
        raise TraceRejected(f"format is {one_line(header.format)}, must be {FORMAT}")
    ends = np.cumsum([line.turns for line in lines], dtype=np.int64)
    _check_turns(turns, ends, header)
    begins = [0, *ends[:-1].tolist()]
    programs = [
        _program(line, turns[begin : begin + line.turns], header)
        for line, begin in zip(lines, begins, strict=True)
    ]
    shortest = np.minimum.reduceat(turns["prompt"], begins).tolist()
    for program, prompt in zip(programs, shortest, strict=True):
        if program.prefix is not None and not 1 <= program.prefix.tokens <= prompt:
            raise TraceRejected(f"program {program.id!r}: a prompt is shorter than its prefix")
    return programs


def _member(archive: zipfile.ZipFile, name: str, ends: Ends) -> bytes:
    with archive.open(name) as member:
        return read_up_to(MAX_STORED_BYTES, member, ends)


def _program(line: _Stored, records: Turns, header: _Header) -> Program:
    prefix = fork = None
    try:
        if line.prefix is not None:
            id, tokens = header.prefixes[line.prefix]
            prefix = SharedPrefix(cut(id), tokens)
        if line.fork is not None:
            parent, after, delay_s, joined, provenance = line.fork
            fork = Fork(cut(parent), after, delay_s, joined, Provenance(provenance))
    except (IndexError, ValueError):
        raise TraceRejected(f"program {one_line(line.id)}: an invalid prefix or fork") from None
    turns = StoredTurns(records, header.tools)
    return Program(
        cut(line.id), turns, prefix, fork, line.start_s, cut(line.source),
        inferred_tokens=line.inferred_tokens,
    )  # fmt: skip


def _check_turns(turns: Turns, ends: NDArray[np.int64], header: _Header) -> None:
    """Check all turns at once, with the rules of `traces.check`."""
    if not len(ends) or ends[-1] != len(turns) or (np.diff(ends, prepend=0) < 1).any():
        raise TraceRejected("the numbers of turns do not agree")
    prompt, output = turns["prompt"].astype(np.int64), turns["output"].astype(np.int64)
    most = np.zeros(len(turns), np.int64)
    most[1:] = np.minimum(prompt[1:] - 1, prompt[:-1] + output[:-1])
    most[ends[:-1]] = 0
    for name, valid in (
        ("prompt_tokens", (prompt >= 1) & (prompt <= MAX_TOKENS)),
        ("output_tokens", (output >= 1) & (output <= MAX_TOKENS)),
        ("kept_tokens", (turns["kept"] >= 0) & (turns["kept"] <= most)),
        ("tool_gap_s", (turns["gap_s"] >= 0) & (turns["gap_s"] <= MAX_GAP_S)),
        ("tools", (turns["tools"] >= 0) & (turns["tools"] < len(header.tools))),
        ("gap_provenance", turns["provenance"] < len(PROVENANCES)),
    ):
        if not valid.all():
            number = int(np.argmin(valid))
            raise TraceRejected(f"turn {number} of the file: {name} is out of range")


NUMBERS_AND_NAMES = tuple(field.name for field in fields(Turn) if field.name != "prefixes")


class PackedTurns(Sequence[Turn]):
    __slots__ = ("_bytes", "_size")

    def __init__(self, turns: Sequence[Turn]) -> None:
        rows = [_row(turn) for turn in turns]
        self._bytes = zlib.compress(orjson.dumps(rows), level=1)
        self._size = len(rows)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Turn]:
        rows = orjson.loads(zlib.decompress(self._bytes))
        for prompt, output, kept, tools, command, gap_s, name, *path in rows:
            prefixes = tuple(SharedPrefix(id, tokens) for id, tokens in path)
            provenance = Provenance(name)
            yield Turn(prompt, output, kept, tuple(tools), command, gap_s, provenance, prefixes)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, index: int | slice) -> Turn | tuple[Turn, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedTurns | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def _row(turn: Turn) -> list[object]:
    path = [(prefix.id, prefix.tokens) for prefix in turn.prefixes]
    return [*(getattr(turn, name) for name in NUMBERS_AND_NAMES), *path]


def packed(programs: Sequence[Program]) -> tuple[Program, ...]:
    """Return the programs with packed turns. Programs that share their turns share packed ones."""
    by_id: dict[int, Sequence[Turn]] = {}
    result = []
    for program in programs:
        turns = by_id.setdefault(id(program.turns), program.turns)
        if not isinstance(turns, PackedTurns | StoredTurns):
            turns = by_id[id(program.turns)] = PackedTurns(turns)
        result.append(replace(program, turns=turns))
    return tuple(result)
