"""Reads a JSON document of a run folder as its record (`servers.records`).

A run folder may come from an untrusted source, so all fields of the record are checked. Other
fields are allowed and ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from msgspec import Struct, ValidationError
from msgspec.json import decode

from servers.basics.errors import InvalidRunFolder
from servers.basics.text import MALFORMED, brief, line_problem, one_line

T = TypeVar("T", bound=Struct)


class _FormatOnly(Struct):
    format: str | None = None


def read_document(path: Path, kind: type[T], remedy: str) -> T:
    """Raises InvalidRunFolder, which names the file, the first invalid field and its value."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InvalidRunFolder(f"{path}: does not exist; {remedy}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRunFolder(f"{path}: cannot be read: {reason}") from None
    try:
        return decode_document(content, kind)
    except InvalidRunFolder as error:
        raise InvalidRunFolder(one_line(f"{path}: {error}; {remedy}")) from None


def decode_document(content: bytes, kind: type[T]) -> T:
    """Raises InvalidRunFolder, which names the first invalid field and its value."""
    try:
        # msgspec does not require the tag of a type that is not in a union.
        if (expected := kind.__struct_config__.tag) is not None:
            found = decode(content, type=_FormatOnly).format
            if found != expected:
                raise InvalidRunFolder(f"format is {brief(found)}, this version reads {expected!r}")
        return decode(content, type=kind)
    except ValidationError as error:
        raise InvalidRunFolder(line_problem(content, error, kind)) from None
    except MALFORMED as error:
        raise InvalidRunFolder(f"not JSON ({error})") from None
