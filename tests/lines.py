"""Records as JSON objects, in memory and in files of JSON lines, which may be compressed."""

from __future__ import annotations

from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import Any

import zstandard
from msgspec import Struct
from msgspec.json import decode, encode

from reports.run_folder.lines import COMPRESSED, find_lines, open_lines

Line = dict[str, Any]


def line_of(record: Struct) -> Line:
    line: Line = decode(encode(record))
    return line


def into(lines: list[Line]) -> Callable[[Struct], None]:
    """Return a function that appends each record to `lines` as a JSON object."""
    return lambda record: lines.append(line_of(record))


def read_lines(path: Path) -> list[Line]:
    return [loads(line) for line in read_plain(path).splitlines()]


def read_plain(path: Path) -> bytes:
    """Return the lines of a file at `path`, or of the compressed one, as cells in virtual time
    write it."""
    with open_lines(find_lines(path) or path) as file:
        return file.read()


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Change the lines of a file, or of the compressed one, which is compressed again. Return the
    file."""
    file, data = find_lines(path) or path, change(read_plain(path))
    if file.suffix == COMPRESSED:
        data = zstandard.ZstdCompressor().compress(data)
    file.unlink()  # it may be a hard link
    file.write_bytes(data)
    return file
