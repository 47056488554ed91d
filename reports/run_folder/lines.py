"""Reads the lines that a cell appended to a file: turns.jsonl, engine.jsonl, programs.jsonl.

In: a path and the type of its records. Out: decoded records, in pieces of a bounded size. A line
that does not fit the type raises InvalidRunFolder, which names file, line number, field and value.
Cells in virtual time compress their files with Zstandard, and their names end in `.zst`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import zstandard
from msgspec.json import Decoder

from servers.basics.errors import InvalidRunFolder
from servers.basics.text import MALFORMED, line_problem, one_line

T = TypeVar("T")

COMPRESSED = ".zst"
PIECE_BYTES = 1 << 20
"""Bytes that are decoded at once."""
RERUN = "run the same bench sweep again, which repeats this cell"
"""Remedy for damage that a repeated sweep detects (`read_cell`)."""
DISCARD_AND_RERUN = "remove done.json there and run the same bench sweep again"


def find_lines(path: Path) -> Path | None:
    """Return the file at `path`, or the compressed one; None if there is neither."""
    compressed = path.with_name(path.name + COMPRESSED)
    return next((file for file in (path, compressed) if file.is_file()), None)


def open_lines(file: Path) -> BinaryIO:
    """Open a file that `find_lines` returned."""
    if file.suffix != COMPRESSED:
        return file.open("rb")
    return cast(BinaryIO, io.BufferedReader(zstandard.open(file, "rb"), PIECE_BYTES))


def read_records(path: Path, kind: type[T]) -> Iterator[T]:
    """Yield the records of a file; none if it does not exist. Skips an incomplete last line."""
    return chain.from_iterable(record_pieces(path, kind))


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file without a record type, as JSON objects."""
    return read_records(path, dict)


def record_pieces(path: Path, kind: type[T]) -> Iterator[list[T]]:
    """Yield records in pieces of some thousand, which limits the memory and is as fast."""
    if (found := find_lines(path)) is None:
        return
    before = 0
    decoder = Decoder(kind)
    with open_lines(found) as file:
        while lines := _next_lines(found, file):
            if not lines[-1].endswith(b"\n"):  # The process was killed while it wrote this line.
                lines.pop()
            if lines:
                yield _decode(found, decoder, lines, before)
            before += len(lines)


def read_text(path: Path) -> bytes:
    """Return the content of a file, decompressed; b"" if it does not exist."""
    if (found := find_lines(path)) is None:
        return b""
    with open_lines(found) as file, _named(found):
        return file.read()


def _next_lines(path: Path, file: BinaryIO) -> list[bytes]:
    with _named(path):
        return file.readlines(PIECE_BYTES)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file that cannot be decompressed."""
    try:
        yield
    except zstandard.ZstdError as error:
        raise InvalidRunFolder(
            one_line(f"{path}: cannot be decompressed: {error}; {DISCARD_AND_RERUN}")
        ) from None


def _decode(path: Path, decoder: Decoder[T], lines: Sequence[bytes], before: int) -> list[T]:
    try:
        records: list[T] = decoder.decode_lines(b"".join(lines))
        if len(records) == len(lines):
            return records
    except MALFORMED:
        pass
    for number, line in enumerate(lines, before + 1):
        try:
            decoder.decode(line)
        except MALFORMED as error:
            problem = line_problem(line, error, decoder.type)
            raise InvalidRunFolder(
                one_line(f"{path}, line {number}: {problem}; {DISCARD_AND_RERUN}")
            ) from None
    raise RuntimeError(f"{path}: cannot be decoded, although each line can")
