"""Arguments of a policy, as text and as values: `continuum(k=50, reclaim_when=pressure)`.

In: the text between the parentheses, and the class. Out: the keyword arguments of its constructor.
Values are literals: numbers, true, false, none, words, quoted text, and lists of these, such as
[1, 2]. No code is evaluated. Names and types are checked against the constructor's signature.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import types
import typing
import warnings
from collections.abc import Collection, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from servers.basics.errors import InvalidPlugin
from servers.basics.nearest import did_you_mean

Value = Any
"""bool, int, float, str, None, or a tuple of these."""
WORDS: dict[str, Value] = {"true": True, "false": False, "none": None}
MAX_NUMBER = 2**53
"""Largest number: JSON has no larger one that is exact."""
FORM = "write arguments as name=value with commas between them, and text in quotes"


class WrongType(Exception):
    """A value is not of the type that the signature names."""


def parse_arguments(text: str, label: str) -> dict[str, Value]:
    """Return keyword arguments. Raise InvalidPlugin; `label` is the policy's text, for messages."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call = ast.parse(f"policy({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidPlugin(f"{label}: {FORM}") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise InvalidPlugin(f"{label}: {FORM}")
    if call.args:
        raise InvalidPlugin(f"{label}: {ast.unparse(call.args[0])} has no name; {FORM}")
    found: dict[str, Value] = {}
    for given in call.keywords:
        if given.arg is None:
            raise InvalidPlugin(f"{label}: {FORM}")
        if given.arg in found:
            raise InvalidPlugin(f"{label}: {given.arg} is given twice; give it once")
        try:
            found[given.arg] = _literal(given.value)
        except WrongType as wrong:
            raise InvalidPlugin(f"{label}: {given.arg}: {wrong}") from None
    return found


def check_arguments(
    policy: type, given: Mapping[str, Value], label: str, others: Collection[str] = ()
) -> tuple[tuple[str, Value], ...]:
    """Return the arguments sorted by name, converted to the types of the signature. Raise
    InvalidPlugin, whose message names `others` too, which are no arguments of the constructor."""
    known, takes_any = parameters(policy)
    for name in given:
        if name not in known and not takes_any:
            raise InvalidPlugin(f"{label}: {_unknown(policy, name, [*known, *others])}")
    return converted(given, known, label)


def converted(
    given: Mapping[str, Value], known: Mapping[str, Any], label: str
) -> tuple[tuple[str, Value], ...]:
    """Return the values sorted by name, converted to the types in `known`. Raise InvalidPlugin."""
    checked = {}
    for name, value in given.items():
        try:
            checked[name] = _convert(value, known.get(name, Any))
        except WrongType as wrong:
            raise InvalidPlugin(f"{label}: {name} must be {wrong}, not {_text(value)}") from None
    return tuple(sorted(checked.items()))


def arguments_text(arguments: Collection[tuple[str, Value]]) -> str:
    """Return text such as `(k=50,reclaim_when=pressure)`, which `parse_arguments` can read; empty
    for no arguments."""
    inside = ",".join(f"{name}={_text(value)}" for name, value in arguments)
    return f"({inside})" if inside else ""


def _literal(node: ast.expr) -> Value:
    match node:
        case ast.Constant(value=bool() | None as value):
            return value
        case ast.Constant(value=str() as text) if text.isprintable():
            return text
        case ast.Constant(value=int() | float() as number) if abs(number) <= MAX_NUMBER:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if (
            abs(number) <= MAX_NUMBER and not isinstance(number, bool)
        ):
            return -number
        case ast.Name(id=word):
            return WORDS.get(word, word)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return tuple(map(_literal, items))
    raise WrongType(
        f"{ast.unparse(node)} is neither a number, a word, a printable text in quotes nor a list"
    )


def parameters(policy: type) -> tuple[dict[str, Any], bool]:
    """Return the types of the constructor's parameters after `costs`, by name, and whether it takes
    any keyword."""
    _self, *others = inspect.signature(policy.__init__).parameters.values()  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(policy.__init__)  # type: ignore[misc]
    except Exception:  # of names that only a type checker can resolve
        hints = {}
    named = [p for p in others[1:] if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in others)
    return {p.name: hints.get(p.name, Any) for p in named}, takes_any


def _unknown(policy: type, name: str, known: Collection[str]) -> str:
    label = getattr(policy, "name", policy.__qualname__)
    if not known:
        return f"{name} is not an argument of {label}, which takes none; remove it"
    hint = did_you_mean(name, known)
    return f"{name} is not an argument of {label}{hint} (known: {', '.join(known)})"


def _convert(value: Value, hint: Any) -> Value:
    """Convert a value to a type. Raise WrongType with a description of that type."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        fits = any(value == option and type(value) is type(option) for option in options)
    elif origin in (Union, types.UnionType):
        for option in options:
            try:
                return _convert(value, option)
            except WrongType:
                continue
        fits = False
    elif origin is not None and isinstance(origin, type) and issubclass(tuple, origin):
        if isinstance(value, tuple):
            return tuple(_convert(item, options[0] if options else Any) for item in value)
        fits = False
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif hint in (int, float, str, bool, types.NoneType):
        fits = type(value) is hint
    else:  # a type that text cannot be checked against: the constructor judges it
        fits = True
    if not fits:
        raise WrongType(_expected(hint))
    return value


def _expected(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(_text, options))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_expected, options))
    if origin is not None:
        return f"a list, each item of which is {_expected(options[0])}" if options else "a list"
    return names.get(hint, "none")


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, str):
        bare = value.isidentifier() and not keyword.iskeyword(value) and value not in WORDS
        return value if bare and value.isascii() else repr(value)
    return next((word for word, meant in WORDS.items() if meant is value), repr(value))
