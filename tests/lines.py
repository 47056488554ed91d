"""Records as JSON objects, in memory and in files of JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

Line = dict[str, Any]


def line_of(record: Struct) -> Line:
    line: Line = decode(encode(record))
    return line


def into(lines: list[Line]) -> Callable[[Struct], None]:
    """Return a function that appends each record to `lines` as a JSON object."""
    return lambda record: lines.append(line_of(record))


def read_lines(path: Path) -> list[Line]:
    return [loads(line) for line in path.read_text().splitlines()]
