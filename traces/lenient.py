"""Reading other people's files: what is wrong is repaired or refused, and named.

A loader takes a parsed document and a `Repairs`, returns programs, and raises `Rejected` where no
honest program can be made.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 30
"""Of one file, unpacked."""


class TraceError(ValueError):
    """A trace cannot be used; the message names file, place, value and remedy."""


class Rejected(ValueError):
    """One file gives no program; the reason."""


class Repairs:
    """Counts what was repaired in one file, so that each kind is told once."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        self._counts[reason] += 1

    def told(self) -> list[str]:
        return [f"{reason} ({n} times)" if n > 1 else reason for reason, n in self._counts.items()]


def read_bytes(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Rejected(f"not a whole gzip file ({error})") from None
    except OSError as error:
        raise Rejected(f"cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_BYTES:
        raise Rejected("larger than 1 GiB unpacked; split it")
    if not data.strip():
        raise Rejected("empty file")
    return data


def parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise Rejected("not JSON that can be read: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise Rejected(f"not text in UTF-8 (byte {error.start})") from None
    except ValueError as error:
        raise Rejected(f"not JSON: {error}") from None


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
    return found if found is not None and 1e8 <= found <= 1e11 else None


def shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    if value is None or isinstance(value, bool | int | float | str):
        written = repr(value)[:200]
        return written if len(written) <= 60 else written[:57] + "..."
    return f"a {type(value).__name__}"


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """Text that can be written again: half characters are replaced."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
