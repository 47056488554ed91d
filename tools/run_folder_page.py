"""Renews the tables of docs/reference/run-folder.md from the records of `servers.records`.

`make run-folder` runs it; a test checks that the page is current. Fields of turns.jsonl and
engine.jsonl have their meaning in annotations, fields of JSON documents in docstrings.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from reports.run_folder.document import Field, fields_of
from servers.basics.atomic import write_file
from servers.records.cell import CellRecord
from servers.records.done import DoneRecord
from servers.records.settings import ProfileRecord, RunSettings
from servers.records.sweep import SweepRecord, VariantRecord
from servers.records.turns import EventRecord, TurnRecord

PAGE = Path(__file__).parents[1] / "docs/reference/run-folder.md"
LINES: dict[str, type[Struct]] = {"turns.jsonl": TurnRecord, "engine.jsonl": EventRecord}
DOCUMENTS: dict[str, type[Struct]] = {
    "both": RunSettings,
    "sweep.json": SweepRecord,
    "cell.json": CellRecord,
    "done.json": DoneRecord,
}
ELSEWHERE: dict[type[Struct], type[Struct]] = {
    SweepRecord: RunSettings,
    CellRecord: RunSettings,
    VariantRecord: CellRecord,
}
"""Records whose fields another record explains."""
RESULTS = ("done.json",)
"""Documents of which the page also shows the parts of fields, such as `window.from_s`."""
LINES_HEAD = "| field | meaning | null or absent |\n|---|---|---|\n"
HEAD = "| field | meaning |\n|---|---|\n"


def page(text: str) -> str:
    for name in (*LINES, *DOCUMENTS):
        before, begin, rest = text.partition(f"<!-- fields of {name} -->\n")
        _, end, after = rest.partition("<!-- end of fields -->\n")
        text = before + begin + _table(name) + end + after
    return text


def _table(name: str) -> str:
    if name in LINES:
        return LINES_HEAD + "".join(map(_line_row, fields_of(LINES[name])))
    rows = (
        f"| `{field}` | {meaning} |\n"
        for field, meaning in documented(DOCUMENTS[name])
        if "." not in field or name in RESULTS
    )
    return HEAD + "".join(rows)


def _line_row(field: Field) -> str:
    return f"| `{field.name}` | {field.meaning} | {field.null} |\n"


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
