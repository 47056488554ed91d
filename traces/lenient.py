"""Reading other people's files: what is wrong is repaired or refused, and named.

A loader takes a parsed document and a `Repairs` and returns programs. It raises `TraceRejected`
where no honest program can be made.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import re
import stat
import zlib
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from servers.errors import TraceRejected

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MAX_BYTES = 1 << 30
"""Of one file, unpacked."""
MAX_VALUES = 20_000_000
"""Of one file: each takes up to 300 bytes, whatever it took in the file (`[],` takes three)."""
PIECE_BYTES = 1 << 20


class Repairs:
    """Counts what was repaired in one file, so that each kind is told once."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        self._counts[reason] += 1

    def told(self) -> list[str]:
        return [f"{reason} ({n} times)" if n > 1 else reason for reason, n in self._counts.items()]


def read_bytes(path: Path) -> bytes:
    """Of a regular file: a pipe would wait for a writer, and a device has no end."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TraceRejected("no regular file; copy what is in it into one")
            unpacked = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            data = bounded(cast(IO[bytes], unpacked))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceRejected(f"not a whole gzip file ({error})") from None
    except OSError as error:
        raise TraceRejected(f"cannot be read ({error.strerror or error})") from None
    if not data or data.isspace():
        raise TraceRejected("empty file")
    return data


def bounded(file: IO[bytes]) -> bytes:
    """In pieces, so that nothing is set aside for what does not come."""
    data = bytearray()
    while piece := file.read(PIECE_BYTES):
        data += piece
        if len(data) > MAX_BYTES:
            raise TraceRejected(f"larger than {MAX_BYTES >> 20} MiB unpacked; split it")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise TraceRejected(f"may hold more than {MAX_VALUES:,} values; split it")
    return bytes(data)


def parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise TraceRejected("not JSON that can be read: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise TraceRejected(f"not text in UTF-8 (byte {error.start})") from None
    except ValueError as error:
        raise TraceRejected(f"not JSON: {error}") from None


@lru_cache(maxsize=2)
def _parse_start(data: bytes) -> Any:
    """The JSON value that bytes begin with, as far as they go; None if they begin none."""
    try:
        return from_json(data, allow_partial=True)
    except ValueError:
        pass
    try:
        return json.loads(data)  # which takes half surrogates, and nests deeper
    except (ValueError, RecursionError):
        return None


forget_parsed_starts = _parse_start.cache_clear


def line_start(first_bytes: bytes) -> Any:
    """The JSON value on a file's first line, as far as the bytes go; None if there is none."""
    return _parse_start(first_bytes.lstrip().split(b"\n", 1)[0])


def document_start(first_bytes: bytes) -> Any:
    """The JSON document that a file begins with, as far as the bytes go; None for JSON Lines, and
    where there is none."""
    first_line, _, others = first_bytes.lstrip().partition(b"\n")
    if not others or others.isspace():
        return _parse_start(first_line)
    try:
        parse_json(first_line)
    except TraceRejected:
        return _parse_start(first_bytes)
    return None


def number(value: object) -> float | None:
    """A finite number, or None; numbers written as text count too."""
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
"""Of a moment; a gap is shorter."""
MAX_GAP_S = 3.2e7
"""A year."""
MAX_START_S = 1e11
"""Of a start, which may be a moment in Unix seconds."""


def tokens(value: object) -> int | None:
    """A token count that can be one, or None."""
    found = number(value)
    return int(found) if found is not None and 0 <= found <= MAX_TOKENS else None


def seconds(value: object) -> float | None:
    """A duration that can be one, or None."""
    found = number(value)
    return found if found is not None and 0 <= found <= MAX_SECONDS else None


def epoch(value: object) -> float | None:
    """A moment in Unix seconds, or None."""
    found = number(value)
    return found if found is not None and 1e8 <= found <= MAX_START_S else None


def shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    if value is None or isinstance(value, bool | int | float | str):
        written = repr(value)[:200]
        return written if len(written) <= 60 else written[:57] + "..."
    return f"a {type(value).__name__}"


def must(message: str) -> str:
    """A validator's message, to stand behind field and value."""
    return re.sub(r"^\w+ should ", "must ", message).removeprefix("Value error, ")


def first_error(error: ValidationError) -> tuple[str, ErrorDetails]:
    """The first field that a strict reader refused, "" for the whole, and what pydantic says."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), first


def first_wrong(error: ValidationError) -> str:
    """The first field that a strict reader refused, its value, and what to do."""
    field, first = first_error(error)
    field = field or "the line"
    told = must(first["msg"])
    if first["type"] == "missing":
        return f"{field}: missing; add it"
    if first["type"] == "json_invalid":
        return f"{field}: {told}; write one JSON object a line"
    if first["type"] == "extra_forbidden":
        told = "not a field of this format; remove it"
    return f"{field} is {shown(first['input'])}: {told}"


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""What moves a terminal's cursor, ends a line, or turns the direction of writing."""
MOST_CHARACTERS = 400


def has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    """Of what others wrote, fit for a terminal: control characters as escapes."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """Printable, and not too much of it."""
    short = len(text) <= MOST_CHARACTERS
    return printable(text if short else text[: MOST_CHARACTERS - 1] + "…")


def identifier(value: object) -> str:
    """An id of somebody else's, as one of ours; "" where there is none. Long ones that differ
    differ still."""
    whole = text(value)
    if len(whole) <= MOST_CHARACTERS:
        return printable(whole)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    return printable(f"{whole[: MOST_CHARACTERS - 13]}…{digest}")


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """Text that can be written again: half characters are replaced."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
