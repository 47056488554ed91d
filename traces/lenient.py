"""Helpers for loaders of untrusted files.

They read bytes and JSON within bounds, extract numbers and text from parsed values, and make text
safe to print. Loaders report repairs in a `Repairs`, and raise TraceRejected for files without a
valid program.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import text
from traces.compressed import DAMAGED, decompressed
from traces.laws import Laws

MAX_BYTES = 1 << 30
"""Maximum size of a file, decompressed."""
MAX_VALUES = 20_000_000
"""Maximum number of JSON values in a file. Each takes up to 300 bytes of memory, but may take only
three in the file (`[],`)."""
MAX_TEXT_BYTES = 16 << 20
"""Maximum size of one text in a file, or of one line of a table, up to one `CHUNK_BYTES` more."""
CHUNK_BYTES = 1 << 20
_END_OF_TEXT = re.compile(rb'(?<!\\)(?:\\\\)*"')
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
BINARY = (".parquet", ".packed")
"""Suffixes of files whose texts are limited by their own readers."""


class Repairs:
    """The repairs of one file. Each reason is reported once, with its count."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.laws = Laws()
        self.inferred_counts = 0
        """Number of token counts that are inferred although the file records others."""

    def add(self, reason: str, times: int = 1) -> None:
        if times:
            self._counts[reason] += times

    def add_inferred_count(self, reason: str) -> None:
        self.add(reason)
        self.inferred_counts += 1

    def reasons(self) -> list[str]:
        counts = self._counts.items()
        repaired = [f"{reason} ({n} times)" if n > 1 else reason for reason, n in counts]
        return repaired + self.laws.reasons()


def read_bytes(path: Path, first: int | None = None) -> bytes:
    """Read a regular file or its first bytes, and decompress it if its suffix is .gz or .zst.
    Pipes, which would block, and devices, which have no end, are rejected."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TraceRejected("not a regular file; copy its contents into one")
            unpacked = decompressed(path, file)
            if first:
                data = unpacked.read(first)
            else:
                ends = ends_line if path.name.endswith(TABLES) else ends_text
                data = bounded(unpacked, None if path.suffix in BINARY else ends)
    except DAMAGED as error:
        kind = "gzip" if path.suffix == ".gz" else "Zstandard"
        raise TraceRejected(f"not a complete {kind} file ({error})") from None
    except OSError as error:
        raise TraceRejected(f"cannot be read ({error.strerror or error})") from None
    if not data or data.isspace():
        raise TraceRejected("empty file")
    return data


def ends_line(data: bytearray, begin: int) -> bool:
    """Return whether a line ends in the bytes from `begin` on."""
    return data.find(b"\n", begin) >= 0 or data.find(b"\r", begin) >= 0


def ends_text(data: bytearray, begin: int) -> bool:
    """Return whether the bytes from `begin` on contain the end of a line or an unescaped quote,
    which end a text in JSON."""
    if data.find(b"\n", begin) >= 0:
        return True
    return data.find(b'"', begin) >= 0 and _END_OF_TEXT.search(data, begin) is not None


Ends = Callable[[bytearray, int], bool] | None
"""Whether a text ends in the bytes from an offset on; None for binary data."""


def bounded(file: IO[bytes], ends: Ends = ends_text) -> bytes:
    """Read up to `MAX_BYTES` with up to `MAX_VALUES` values."""
    data = read_up_to(MAX_BYTES, file, ends)
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise TraceRejected(f"may contain more than {MAX_VALUES:,} values; split it")
    return data


def read_up_to(limit_bytes: int, file: IO[bytes], ends: Ends) -> bytes:
    """Read in chunks, so that memory is allocated only for existing data, with texts of up to
    `MAX_TEXT_BYTES`."""
    data = bytearray()
    ended = 0
    """The end of the last chunk in which a text ends."""
    while chunk := file.read(CHUNK_BYTES):
        begin = len(data)
        data += chunk
        if ends is None or ends(data, begin):
            ended = len(data)
        if len(data) - ended > MAX_TEXT_BYTES:
            raise TraceRejected(f"has a value of more than {MAX_TEXT_BYTES >> 20} MiB; shorten it")
        if len(data) > limit_bytes:
            raise TraceRejected(f"larger than {limit_bytes >> 20} MiB decompressed; split it")
    return bytes(data)


def lines(data: bytes) -> Iterator[bytes]:
    """Yield lines without their ends, one at a time, since a list would copy the file."""
    return (line.rstrip(b"\r\n") for line in io.BytesIO(data))


def parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise TraceRejected("JSON nested too deeply") from None
    except UnicodeDecodeError as error:
        raise TraceRejected(f"not text in UTF-8 (byte {error.start})") from None
    except ValueError as error:
        raise TraceRejected(f"not JSON: {error}") from None


@lru_cache(maxsize=2)
def _parse_start(data: bytes) -> Any:
    """Return the JSON value at the start of the bytes, which may be truncated, or None."""
    try:
        return from_json(data, allow_partial=True)
    except ValueError:
        pass
    try:
        return json.loads(data)  # accepts lone surrogates and deeper nesting
    except (ValueError, RecursionError):
        return None


clear_parsed_starts = _parse_start.cache_clear


def line_start(first_bytes: bytes) -> Any:
    """Return the JSON value on a file's first line, which may be truncated, or None."""
    return _parse_start(first_bytes.lstrip().split(b"\n", 1)[0])


def document_start(first_bytes: bytes) -> Any:
    """Return the JSON document at the start of a file, which may be truncated; None without one,
    and for JSON Lines."""
    first_line, _, others = first_bytes.lstrip().partition(b"\n")
    if not others or others.isspace():
        return _parse_start(first_line)
    try:
        parse_json(first_line)
    except TraceRejected:
        return _parse_start(first_bytes)
    return None


def starts(first_bytes: bytes) -> Iterator[Any]:
    """Yield `document_start` and `line_start`, for formats whose files are a document or JSON
    Lines."""
    yield document_start(first_bytes)
    yield line_start(first_bytes)


def number(value: object) -> float | None:
    """Return a finite number, which may be in a string; None for other values."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}(\.\d{1,18})?\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


MAX_TOKENS = 100_000_000
MAX_SECONDS = 1e9
"""Upper bound of a recorded duration or time. Tool gaps have a lower bound."""
MAX_GAP_S = 3.2e7
"""Upper bound of a tool gap: a year."""
MAX_START_S = 1e11
"""Upper bound of a program's start, which may be in Unix seconds."""


def tokens(value: object) -> int | None:
    """Return a plausible token count, or None."""
    n = number(value)
    return int(n) if n is not None and 0 <= n <= MAX_TOKENS else None


def seconds(value: object) -> float | None:
    """Return a plausible duration, or None."""
    n = number(value)
    return n if n is not None and 0 <= n <= MAX_SECONDS else None


def epoch(value: object) -> float | None:
    """Return a plausible time in Unix seconds, or None."""
    n = number(value)
    return n if n is not None and 1e8 <= n <= MAX_START_S else None


def moment(value: object) -> float | None:
    """Return an ISO 8601 time in Unix seconds, or None. Without a zone, it is taken as UTC."""
    try:
        at = datetime.fromisoformat(text(value))
        return epoch((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def first_text(fields: JsonObject, *names: str) -> str:
    """Return the first of these fields that has text; "" if none has."""
    return next(filter(None, (text(fields.get(name)) for name in names)), "")


def mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
