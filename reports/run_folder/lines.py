"""Reads the lines that a cell appended to a file: turns.jsonl, engine.jsonl, programs.jsonl.

In: a path and the type of its records. Out: decoded records, in pieces of a bounded size. A line
that does not fit the type raises InvalidRunFolder, which names file, line number, field and value.
Cells in virtual time compress their files with Zstandard, and their names end in `.zst`. Checksums
(`SHA256SUMS`) show whether a finished cell is damaged.
"""

from __future__ import annotations

import hashlib
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
        while True:
            with _named(found):
                lines = file.readlines(PIECE_BYTES)
            if not lines:
                return
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


CHECKSUMS = "SHA256SUMS"
LINES = tuple(
    f"{name}{end}" for name in ("turns.jsonl", "engine.jsonl") for end in ("", COMPRESSED)
)
CELL_NUMBERS = "numbers.json.zst"
DOCUMENTS = ("cell.json", *LINES, "programs.jsonl", CELL_NUMBERS, "done.json")
"""Files that a cell may have and that reports read. Only real agents have `programs.jsonl`."""


def checksums(cell: Path, done: bytes) -> bytes:
    """Return the content of `SHA256SUMS`. `done`: the content that `done.json` will have."""
    return _lines(_sums(cell) | {"done.json": hashlib.sha256(done).hexdigest()})


def without_lines(written: bytes) -> bytes:
    """Return the content of `SHA256SUMS` without the files of turns and events."""
    ends = tuple(f"  {name}\n".encode() for name in LINES)
    return b"".join(line for line in written.splitlines(True) if not line.endswith(ends))


def check_checksums(cell: Path) -> None:
    """Raise InvalidRunFolder if the files of a finished cell are not as they were written."""
    path = cell / CHECKSUMS
    try:
        written, found = path.read_bytes(), _sums(cell)
    except FileNotFoundError as error:
        raise InvalidRunFolder(f"{error.filename}: does not exist; {RERUN}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRunFolder(f"{error.filename}: cannot be read: {reason}") from None
    listed = set[str]()
    for line in written.splitlines(keepends=True):
        name = line[line.find(b"  ") + 2 : -1].decode(errors="replace")
        if name not in DOCUMENTS:
            raise InvalidRunFolder(f"{path}: does not list the files of the cell; {RERUN}")
        if name not in found:
            raise InvalidRunFolder(f"{cell / name}: does not exist; {RERUN}")
        if line != _lines({name: found[name]}):
            raise InvalidRunFolder(
                f"{cell / name}: differs from its checksum in {CHECKSUMS}; {RERUN}"
            )
        listed.add(name)
    # A process that was killed in `remove_lines` leaves turns that are not listed.
    if not {*found, "done.json"}.difference(LINES) <= listed:
        raise InvalidRunFolder(f"{path}: does not list the files of the cell; {RERUN}")


def _sums(cell: Path) -> dict[str, str]:
    sums: dict[str, str] = {}
    for path in (cell / name for name in DOCUMENTS):
        if path.is_file():
            with path.open("rb") as file:
                sums[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def _lines(sums: dict[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
