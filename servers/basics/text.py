"""Text that is safe to print, and errors of msgspec and pydantic in one line.

Ids, names and values come from files, models and servers, and may contain anything.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def brief(value: object) -> str:
    """Format a value for a message, in at most 60 characters."""
    if value is None or isinstance(value, bool | int | float | str):
        # As JSON and TOML write it.
        formatted = str(value).lower() if isinstance(value, bool) else repr(value)[:200]
        return formatted if len(formatted) <= 60 else formatted[:57] + "..."
    return f"a {type(value).__name__}"


MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for a line that it cannot decode."""


def line_problem(line: bytes, error: Exception, kind: Any) -> str:
    """Describe why msgspec did not decode a line as this type: the field, its value, and what was
    expected."""
    if not isinstance(error, msgspec.ValidationError):
        return "not a JSON object"
    if isinstance(error.__cause__, ValueError):  # a check of several fields
        return str(error.__cause__)
    what, _, field = str(error).partition(" - at ")
    field = field.replace("`key` in ", "").replace("`$", "").strip("`.")
    if unknown := re.search(r"unknown field `(.+)`", what):
        name = f"{field}.{unknown[1]}" if field else unknown[1]
        return f"{brief(name)} is not a field of this format; remove it"
    if missing := re.search(r"missing required field `(\w+)`", what):
        return f"lacks {field}.{missing[1]}" if field else f"lacks {missing[1]}"
    if not field:
        return "not a JSON object"
    expected = what.partition(", got")[0].replace("`", "")
    expected = f"{expected[:1].lower()}{expected[1:]}"
    if "matching regex" in expected and "x00-" in expected:  # `CONTROL`
        expected = "must have no control characters"
    try:
        value: Any = msgspec.json.decode(line)
        document = value
        for key in re.findall(r"\.\.\.|[^.\[\]]+", field):
            if key == "...":  # msgspec does not tell which key of a mapping
                key = _refused_key(value, document, error, kind)
                field = field.replace("[...]", f"[{brief(key)}]", 1)
            value = value[int(key) if isinstance(value, list) else key]
    except (*MALFORMED, LookupError, TypeError, ValueError):
        return f"{field}: {expected}"  # the line is also malformed after the field
    return f"{field} is {brief(value)}: {expected}"


def _refused_key(mapping: dict[str, Any], document: Any, error: Exception, kind: Any) -> str:
    """Return the key of the value that msgspec refuses, and leave only this in a mapping of a
    document. Raises LookupError if it is not found, as a value whose key is repeated."""
    entries = list(mapping.items())
    while entries:
        half = entries[: (len(entries) + 1) // 2]
        mapping.clear()
        mapping.update(half)
        try:
            msgspec.convert(document, kind, str_keys=True)
        except msgspec.ValidationError as found:
            if str(found) == str(error):
                if len(half) == 1:
                    return half[0][0]
                entries = half
                continue
        entries = entries[len(half) :]
    raise LookupError


def requirement(message: str) -> str:
    """Return a validator's message as text that follows the field and the value."""
    return re.sub(r"^\w+ should ", "must ", message).removeprefix("Value error, ")


def first_error(error: ValidationError) -> tuple[str, ErrorDetails]:
    """Return the first invalid field, "" for the whole document, and its error."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), first


def describe_first_error(error: ValidationError) -> str:
    """Describe the first invalid field, its value, and the remedy."""
    field, first = first_error(error)
    field = field or "the line"
    required = requirement(first["msg"])
    if first["type"] == "missing":
        return f"{field}: missing; add it"
    if first["type"] == "json_invalid":
        return f"{field}: {required}; write one JSON object per line"
    if first["type"] == "extra_forbidden":
        required = "not a field of this format; remove it"
    return f"{field} is {brief(first['input'])}: {required}"


CONTROL = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
_CONTROL = re.compile(f"[{CONTROL}]")
"""Characters that move a terminal's cursor, end a line, or change the text direction."""


MAX_CHARACTERS = 400


def has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


def printable(text: str) -> str:
    """Escape control characters, so that the text is safe to print on a terminal."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return printable text of at most `MAX_CHARACTERS` characters before escaping."""
    short = len(text) <= MAX_CHARACTERS
    return printable(text if short else text[: MAX_CHARACTERS - 1] + "…")


def quoted(text: str) -> str:
    """Return text of the command line in quotes, in ASCII and cut after 60 characters."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def slug(text: str) -> str:
    """Return text as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-.")


def identifier(value: object) -> str:
    """Return a recorded id, printable and bounded in length; "" if there is none. Different ids
    remain different: a long one ends in a hash of its full text."""
    full = text(value)
    if len(full) <= MAX_CHARACTERS:
        return printable(full)
    digest = hashlib.sha256(full.encode()).hexdigest()[:12]
    return printable(f"{full[: MAX_CHARACTERS - 13]}…{digest}")


def cut(name: str) -> str:
    """Return a name of at most `MAX_CHARACTERS`: a longer one as `identifier` does."""
    return identifier(name) if len(name) > MAX_CHARACTERS else name


def text(value: object) -> str:
    """Return a string with lone surrogates replaced, or "" for other values."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
