"""Counts the fields of trace files that their reader does not use, as newer versions add some.

What a reader uses is taken from its source: the texts in its module and in the modules of formats
that it imports. In: the bytes of a file and the module of its format. Out: counts by field, as
`parent.field`, and by kind of record, as `type=value`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from servers.basics.errors import TraceRejected
from traces.lenient import lines, parse_json

KINDS = frozenset({"type", "kind", "record_type", "role", "subtype"})
"""Fields whose values name the kind of a record."""
GIVEN = frozenset({"args", "arguments", "input", "parameters", "toolUseResult", "metadata"})
"""Fields whose contents are of tools and users."""
NAME = re.compile(r"[A-Za-z_][\w.-]{0,60}")
MAX_DEPTH = 12


def unread_fields(data: bytes, reader: object) -> Counter[str]:
    """`reader`: a format's module, or an object of a class in one."""
    module = reader if isinstance(reader, ModuleType) else inspect.getmodule(type(reader))
    known = _known(module.__name__) if module else frozenset()
    found: Counter[str] = Counter()
    for document in _documents(data):
        _count(document, "", known, found, 0)
    return found


def _documents(data: bytes) -> Iterator[Any]:
    try:
        yield parse_json(data)
    except TraceRejected:
        for line in lines(data):
            try:
                yield parse_json(line)
            except TraceRejected:
                continue


def _count(value: Any, parent: str, known: frozenset[str], found: Counter[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            _count(item, parent, known, found, depth + 1)
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        if name not in known:
            if NAME.fullmatch(name):
                found[f"{parent}.{name}" if parent else name] += 1
        elif name in KINDS and isinstance(inner, str):
            if not _is_known(inner, known) and NAME.fullmatch(inner):
                found[f"{name}={inner}"] += 1
        elif name not in GIVEN:
            _count(inner, name, known, found, depth + 1)


def _is_known(kind: str, known: frozenset[str]) -> bool:
    """Return whether a kind of record is known, if only by its end, such as `_output`."""
    return kind in known or kind[kind.rfind("_") :] in known


@cache
def _known(module: str) -> frozenset[str]:
    """Return the texts in the source of a module and of the modules of its package that it
    imports, and the fields of the records that it declares."""
    names: set[str] = set()
    for each in _with_imports(module, set()):
        tree = ast.parse(inspect.getsource(sys.modules[each]))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.bases:  # a structure of a record
                fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
                names.update(ast.unparse(each.target) for each in fields)
            elif isinstance(node, ast.Constant) and id(node) not in documentation:
                names.update(_texts(node.value))
    return frozenset(names)


def _texts(value: object) -> Iterator[str]:
    written = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(written, str) and " " not in written:  # messages name no fields
        yield written
        yield from re.findall(r"[A-Za-z_]\w*", written)


def _with_imports(module: str, seen: set[str]) -> set[str]:
    seen.add(module)
    package = module.partition(".")[0]
    readers = "traces.formats." if package == "traces" else ("traces.formats.", f"{package}.")
    for value in vars(sys.modules[module]).values():
        other = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
        if isinstance(other, str) and other.startswith(readers) and other not in seen:
            _with_imports(other, seen)
    return seen
