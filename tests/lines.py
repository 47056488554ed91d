"""Records as the JSON objects that their lines hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

Line = dict[str, Any]


def line_of(record: Struct) -> Line:
    line: Line = decode(encode(record))
    return line


def into(lines: list[Line]) -> Callable[[Struct], None]:
    """Takes records, and appends what their lines hold."""
    return lambda record: lines.append(line_of(record))
