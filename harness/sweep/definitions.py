"""The definitions of a Python file, without what does not decide results.

In: a file. Out: for each of its top-level names, a hash of the code that defines it, and what this
code uses. Comments, formatting, docstrings, type annotations and the texts of messages do not
affect the hash. Results are kept in `~/.cache/turnstile/definitions`, since parsing takes a second.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from servers.basics import errors
from servers.basics.atomic import write_file
from servers.basics.errors import CannotWrite
from servers.vllm.models.model_folder import cache_folder
from traces.formats import about

PRINTS = frozenset({"print", "print_message", "warn", "debug", "info", "warning", "exception"})
MODULE = re.compile(r"[a-z_]\w*(\.\w+)+(:\w+)?")
"""Text that may name a module, such as one that another process runs, and an object in it."""
TABLE = "built_in"
"""Argument of a registry, a table of `module:object`. A cell uses one of these objects, which its
settings name."""
ON_IMPORT = ""
"""Name of the statements that run on import and define nothing."""
Import = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Use(NamedTuple):
    """A module that code uses, or an object in it, by its dotted name."""

    module: str
    names: tuple[str, ...] = ()


class Definition(NamedTuple):
    sha256: str
    uses: frozenset[Use]


class Source(msgspec.Struct, frozen=True):
    """What the names of a module mean: those that it defines, and those that it imports."""

    definitions: dict[str, Definition]
    imports: dict[str, Use]


@lru_cache(maxsize=4096)
def read_source(module: str, is_package: bool, content: bytes) -> Source:
    """Return what the names in a file mean; of a file that cannot be parsed, only its imports."""
    key = hashlib.sha256(b"\0".join([_own_content(), module.encode(), content])).hexdigest()
    stored = cache_folder().with_name("definitions") / key
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(stored.read_bytes(), type=Source)
    source = _Module(module, is_package, content).source()
    with suppress(CannotWrite):
        write_file(stored, msgspec.msgpack.encode(source))
    return source


@lru_cache(maxsize=1)
def _own_content() -> bytes:
    return Path(__file__).read_bytes()


class _Module:
    def __init__(self, name: str, is_package: bool, content: bytes) -> None:
        self.name = name
        self.package = name.split(".") if is_package else name.split(".")[:-1]
        self.statements: dict[str, list[ast.stmt]] = {ON_IMPORT: []}
        self.imports: dict[str, Use] = {}
        with suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
            self._add(ast.parse(content).body)

    def _add(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, Import):
                self.imports.update(self.imported(statement))
            elif isinstance(statement, ast.If) and _dotted(statement.test) == ("TYPE_CHECKING",):
                self._add(statement.orelse)
            elif not _is_text(statement):
                for name in [*_defined(statement)] or [ON_IMPORT]:
                    self.statements.setdefault(name, []).append(statement)

    def imported(self, statement: Import) -> Iterator[tuple[str, Use]]:
        """Yield the names that an import defines, and what they mean."""
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or name, Use(name)
            return
        level = statement.level
        parts = self.package[: len(self.package) - level + 1] if level else []
        module = ".".join([*parts, *filter(None, [statement.module])])
        for alias in statement.names:
            yield alias.asname or alias.name, Use(module, (alias.name,))

    def use(self, name: str) -> Use | None:
        """Return what a name means here; None for a built-in or local one."""
        return Use(self.name, (name,)) if name in self.statements else self.imports.get(name)

    def source(self) -> Source:
        definitions = {
            name: _Code(self).definition(statements) for name, statements in self.statements.items()
        }
        return Source(definitions, self.imports)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, Function | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for node in chain.from_iterable(map(ast.walk, targets)):
            if isinstance(node, ast.Name):
                yield node.id
    else:
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):
                yield from _defined(inner)


class _Code:
    """Code as text that has equal characters if it decides the same, and the names in it."""

    def __init__(self, module: _Module) -> None:
        self._module = module
        self._text: list[str] = []
        self._names: set[tuple[str, ...]] = set()
        self._imports: dict[str, Use] = {}
        """Imports in functions."""
        self._texts: set[Use] = set()
        """What texts name."""
        self._in_message = self._in_table = self._keeps_types = False

    def definition(self, statements: list[ast.stmt]) -> Definition:
        self._add(statements)
        text = "\n".join(self._text).encode("utf-8", "surrogatepass")
        uses = {*self._texts, *self._imports.values()}
        for first, *rest in self._names:
            if use := self._imports.get(first) or self._module.use(first):
                uses.add(Use(use.module, (*use.names, *rest)))
        return Definition(hashlib.sha256(text).hexdigest(), frozenset(uses))

    def _add(self, node: Any) -> None:
        if isinstance(node, list):
            self._text.append("[")
            for each in node:
                self._add(each)
            self._text.append("]")
        elif isinstance(node, ast.AST):
            _ADD.get(type(node), _Code._add_fields)(self, node)
        else:
            self._text.append(repr(node))

    def _add_fields(self, node: ast.AST) -> None:
        self._text.append(type(node).__name__)
        for field in node._fields:
            if field not in ("ctx", "returns", "type_comment"):
                self._add(getattr(node, field))

    def _add_message(self, node: ast.AST) -> None:
        outer, self._in_message = self._in_message, True
        self._add_fields(node)
        self._in_message = outer

    def _add_name(self, node: ast.Name | ast.Attribute) -> None:
        if names := _dotted(node):
            self._text.append(".".join(names))
            self._names.add(names)
        else:
            self._add_fields(node)

    def _add_constant(self, node: ast.Constant) -> None:
        text = node.value if isinstance(node.value, str) else ""
        if self._in_message and " " in text:
            return
        self._text.append(repr(node.value))
        if MODULE.fullmatch(text) and not self._in_table:
            top, *names = text.replace(":", ".").split(".")
            self._texts.add(Use(top, tuple(names)))

    def _add_f_string(self, node: ast.JoinedStr) -> None:
        texts = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
        if not (self._in_message and any(" " in text for text in texts)):
            self._add_fields(node)

    def _add_expression(self, node: ast.Expr) -> None:
        if not _is_text(node):
            called = _dotted(node.value.func) if isinstance(node.value, ast.Call) else ()
            is_print = bool(called) and called[-1] in PRINTS
            (self._add_message if is_print else self._add_fields)(node)

    def _add_call(self, node: ast.Call) -> None:
        use = self._module.use(node.func.id) if isinstance(node.func, ast.Name) else None
        is_text = use is not None and use.module in (errors.__name__, about.__name__)
        (self._add_message if is_text else self._add_fields)(node)

    def _add_keyword(self, node: ast.keyword) -> None:
        outer, self._in_table = self._in_table, self._in_table or node.arg == TABLE
        self._add_fields(node)
        self._in_table = outer

    def _add_class(self, node: ast.ClassDef | Function) -> None:
        """Types decide what a msgspec.Struct accepts, but not what a dataclass or a call does."""
        outer = self._keeps_types
        self._keeps_types = isinstance(node, ast.ClassDef) and bool(node.bases)
        self._add_fields(node)
        self._keeps_types = outer

    def _add_annotated(self, node: ast.AnnAssign) -> None:
        self._add(node.target)
        self._add(node.value)
        if self._keeps_types:
            self._add_message(node.annotation)  # texts in annotations are help

    def _add_import(self, node: Import) -> None:
        self._imports.update(self._module.imported(node))

    def _add_argument(self, node: ast.arg) -> None:
        self._text.append(node.arg)


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """Return the names of `a.b.c`; nothing for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


_ADD: dict[type[ast.AST], Callable[[_Code, Any], None]] = {
    ast.Raise: _Code._add_message,
    ast.Name: _Code._add_name,
    ast.Attribute: _Code._add_name,
    ast.Constant: _Code._add_constant,
    ast.JoinedStr: _Code._add_f_string,
    ast.Expr: _Code._add_expression,
    ast.Call: _Code._add_call,
    ast.keyword: _Code._add_keyword,
    ast.ClassDef: _Code._add_class,
    ast.FunctionDef: _Code._add_class,
    ast.AsyncFunctionDef: _Code._add_class,
    ast.AnnAssign: _Code._add_annotated,
    ast.Import: _Code._add_import,
    ast.ImportFrom: _Code._add_import,
    ast.arg: _Code._add_argument,
}
