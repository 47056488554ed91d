"""Generates the tables of fields in docs/reference/run-folder.md from `servers.records.turns`.

`python -m reports.run_folder.reference` rewrites the tables of the page; a test checks that they
are current.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, UnsetType

from servers.basics.atomic import write_file
from servers.records.turns import EventRecord, TurnRecord

PAGE = Path(__file__).parents[2] / "docs/reference/run-folder.md"
TABLES: dict[str, type[Struct]] = {"turns.jsonl": TurnRecord, "engine.jsonl": EventRecord}
JSON_TYPES = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "tuple": "list of texts",
    "list": "list",
}
HEAD = "| field | type | unit | meaning | null if |\n|---|---|---|---|---|\n"


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


def _row(field: Field) -> str:
    kind = JSON_TYPES.get(field.type, "object")
    return f"| `{field.name}` | {kind} | {field.unit} | {field.meaning} | {field.null} |\n"


def page(text: str) -> str:
    """Return the page with current tables."""
    for name, record in TABLES.items():
        before, begin, rest = text.partition(f"<!-- fields of {name} -->\n")
        _, end, after = rest.partition("<!-- end of fields -->\n")
        rows = "".join(map(_row, fields_of(record)))
        text = before + begin + HEAD + rows + end + after
    return text


if __name__ == "__main__":
    write_file(PAGE, page(PAGE.read_text()).encode())
