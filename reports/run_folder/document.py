"""Reads a JSON document of a run folder as its record (`servers.records`).

A run folder may come from an untrusted source, so all fields of the record are checked. Other
fields are allowed and ignored. `fields_of` lists the fields of a record with their meanings.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, UnsetType, ValidationError
from msgspec.json import decode

from servers.basics.errors import InvalidRunFolder
from servers.basics.text import MALFORMED, brief, line_problem, one_line


class Field(NamedTuple):
    name: str
    type: str
    """The Python type without null: `str`, `int`, `float`, `bool`, `tuple`, …"""
    unit: str
    meaning: str
    null: str
    """When the field is null or left out; "" if never."""


def fields_of(record: type[Struct]) -> tuple[Field, ...]:
    """Return the fields of a record type in the order in which they are written."""
    hints = get_type_hints(record, include_extras=True)
    return tuple(_field(name, hints[name]) for name in record.__struct_fields__)


def _field(name: str, hint: Any) -> Field:
    unit = meaning = null = ""
    kind = ""
    for part in _parts(hint):
        if isinstance(part, Meta):
            extra = part.extra or {}
            meaning, null = part.description or meaning, extra.get("null", null)
            unit = extra.get("unit", unit)
        elif part not in (type(None), UnsetType):
            kind = (get_origin(part) or part).__name__
    return Field(name, kind, unit, meaning, null)


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types of a union, without their annotations, and all annotations."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        yield from _parts(inner)
        yield from notes
    elif isinstance(hint, types.UnionType) or str(get_origin(hint)) == "typing.Union":
        for part in get_args(hint):
            yield from _parts(part)
    else:
        yield hint


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
