"""Helpers of loaders, for files that others wrote and that may contain anything.

They read bytes and JSON within bounds, take numbers and text out of parsed values, and make text
safe to print. What a loader repairs it adds to a `Repairs`; it raises TraceRejected if no valid
program can be made.
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

import msgspec
from pydantic_core import from_json

from servers.errors import TraceRejected

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MAX_BYTES = 1 << 30
"""Size of one file, unpacked."""
MAX_VALUES = 20_000_000
"""JSON values in one file. Each takes up to 300 bytes of memory, and as little as three in the
file (`[],`)."""
PIECE_BYTES = 1 << 20


class Repairs:
    """The repairs of one file. Each kind is reported once, with its count."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        self._counts[reason] += 1

    def reasons(self) -> list[str]:
        return [f"{reason} ({n} times)" if n > 1 else reason for reason, n in self._counts.items()]


def read_bytes(path: Path) -> bytes:
    """Read a regular file and decompress it. Other files are rejected: a pipe would wait for a
    writer, and a device has no end."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TraceRejected("not a regular file; copy its contents into one")
            unpacked = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            data = bounded(cast(IO[bytes], unpacked))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceRejected(f"not a complete gzip file ({error})") from None
    except OSError as error:
        raise TraceRejected(f"cannot be read ({error.strerror or error})") from None
    if not data or data.isspace():
        raise TraceRejected("empty file")
    return data


def bounded(file: IO[bytes]) -> bytes:
    """Read up to `MAX_BYTES` in pieces, so that memory grows only with what is there."""
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
    """A finite number, or None. A string that holds a number counts as one."""
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
"""Bound of a recorded duration or time. Tool gaps have a lower one."""
MAX_GAP_S = 3.2e7
"""Bound of a tool gap: a year."""
MAX_START_S = 1e11
"""Bound of a program's start, which may be in Unix seconds."""


def tokens(value: object) -> int | None:
    """A possible token count, or None."""
    found = number(value)
    return int(found) if found is not None and 0 <= found <= MAX_TOKENS else None


def seconds(value: object) -> float | None:
    """A possible duration, or None."""
    found = number(value)
    return found if found is not None and 0 <= found <= MAX_SECONDS else None


def epoch(value: object) -> float | None:
    """A possible time in Unix seconds, or None."""
    found = number(value)
    return found if found is not None and 1e8 <= found <= MAX_START_S else None


def brief(value: object) -> str:
    """Write a value for a message, in at most 60 characters."""
    if value is None or isinstance(value, bool | int | float | str):
        written = repr(value)[:200]
        return written if len(written) <= 60 else written[:57] + "..."
    return f"a {type(value).__name__}"


MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for a line that it cannot decode."""


def line_problem(line: bytes, error: Exception) -> str:
    """What is wrong with a line that msgspec did not decode: the field, its value, and what was
    expected."""
    if not isinstance(error, msgspec.ValidationError):
        return "not a JSON object"
    what, _, place = str(error).partition(" - at `$")
    if missing := re.search(r"missing required field `(\w+)`", what):
        return f"lacks {missing[1]}"
    if not (place := place.strip("`.")):
        return "not a JSON object"
    expected = what.partition(", got")[0].replace("`", "")
    expected = f"{expected[:1].lower()}{expected[1:]}"
    try:
        value: Any = msgspec.json.decode(line)
        for key in re.findall(r"[^.\[\]]+", place):
            value = value[int(key) if isinstance(value, list) else key]
    except (*MALFORMED, LookupError, TypeError, ValueError):
        return f"{place}: {expected}"  # what follows the field in the line is damaged too
    return f"{place} is {brief(value)}: {expected}"


def requirement(message: str) -> str:
    """What a validator requires, as text that follows the field and the value."""
    return re.sub(r"^\w+ should ", "must ", message).removeprefix("Value error, ")


def first_error(error: ValidationError) -> tuple[str, ErrorDetails]:
    """The first field that pydantic refused, "" for the whole document, and its error."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), first


def describe_first_error(error: ValidationError) -> str:
    """The first field that pydantic refused, its value, and the remedy."""
    field, first = first_error(error)
    field = field or "the line"
    required = requirement(first["msg"])
    if first["type"] == "missing":
        return f"{field}: missing; add it"
    if first["type"] == "json_invalid":
        return f"{field}: {required}; write one JSON object a line"
    if first["type"] == "extra_forbidden":
        required = "not a field of this format; remove it"
    return f"{field} is {brief(first['input'])}: {required}"


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that move a terminal's cursor, end a line, or change the direction of writing."""
MAX_CHARACTERS = 400


def has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    """Text that is safe to print on a terminal: control characters are escaped."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """Printable text of at most `MAX_CHARACTERS`."""
    short = len(text) <= MAX_CHARACTERS
    return printable(text if short else text[: MAX_CHARACTERS - 1] + "…")


def identifier(value: object) -> str:
    """A recorded id, printable and bounded in length; "" if there is none. Different ids stay
    different: a long one ends in a hash of the whole."""
    whole = text(value)
    if len(whole) <= MAX_CHARACTERS:
        return printable(whole)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    return printable(f"{whole[: MAX_CHARACTERS - 13]}…{digest}")


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """The text, with lone surrogates replaced, so that it can be encoded; "" for other values."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
