"""Lists the fields of the records of turns.jsonl and engine.jsonl, with their meanings."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, UnsetType


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
