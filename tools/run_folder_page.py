"""Renews the tables of docs/reference/run-folder.md from the records of `servers.records`.

`make run-folder` runs it; a test checks that the page is current.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from servers.basics.atomic import write_file
from servers.records.cell import CellRecord
from servers.records.done import DoneRecord
from servers.records.settings import ProfileRecord, RunSettings
from servers.records.sweep import SweepRecord, VariantRecord
from servers.records.turns import EventRecord, TurnRecord

PAGE = Path(__file__).parents[1] / "docs/reference/run-folder.md"
RECORDS: dict[str, type[Struct]] = {
    "both": RunSettings,
    "sweep.json": SweepRecord,
    "cell.json": CellRecord,
    "turns.jsonl": TurnRecord,
    "engine.jsonl": EventRecord,
    "done.json": DoneRecord,
}
ELSEWHERE: dict[type[Struct], type[Struct]] = {
    SweepRecord: RunSettings,
    CellRecord: RunSettings,
    VariantRecord: CellRecord,
}
"""Records whose fields another record explains."""
SHOWING_PARTS = ("done.json",)
"""Documents of which the page also shows the parts of fields, such as `window.from_s`."""
HEAD = "| field | meaning |\n|---|---|\n"


def page(text: str) -> str:
    """Return the page with current tables."""
    for name, record in RECORDS.items():
        before, begin, rest = text.partition(f"<!-- fields of {name} -->\n")
        _, end, after = rest.partition("<!-- end of fields -->\n")
        rows = (
            f"| `{field}` | {meaning} |\n"
            for field, meaning in documented(record)
            if "." not in field or name in SHOWING_PARTS
        )
        text = before + begin + HEAD + "".join(rows) + end + after
    return text


def documented(
    record: type[Struct], prefix: str = "", shown: set[type[Struct]] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield each field with its meaning, also fields of its parts, such as `window.jobs`, but none
    that explains itself or that this table (`shown`) or another one has."""
    shown = set() if shown is None else shown
    meanings, hints = _docstrings(record), get_type_hints(record)
    others = ELSEWHERE.get(record)
    for name in record.__struct_fields__:
        if others is not None and name in others.__struct_fields__:
            continue
        inner = next(_parts(hints[name]), None)
        if meaning := meanings.get(name) or (inner and inspect.getdoc(inner)):
            yield f"{prefix}{name}", " ".join(meaning.split()).replace("|", "\\|")
        if inner is not None and inner is not ProfileRecord and inner not in shown:
            shown.add(inner)
            yield from documented(inner, f"{prefix}{name}.", shown)


def _parts(hint: Any) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for part in get_args(hint):
        yield from _parts(part)


def _docstrings(record: type[Struct]) -> dict[str, str]:
    """Return the docstrings below the fields of a record and of its base classes."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if base is Struct or not issubclass(base, Struct):
            continue
        (node,) = ast.parse(inspect.getsource(base)).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for field, after in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                text = ast.literal_eval(after.value)
                found[ast.unparse(field.target)] = inspect.cleandoc(text).replace("\n", " ")
    return found


if __name__ == "__main__":
    write_file(PAGE, page(PAGE.read_text()).encode())
