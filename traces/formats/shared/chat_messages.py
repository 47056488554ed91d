"""Reads chat messages as instrumentations record them: lists, JSON text, or numbered attributes.

In: `{role, content}`, `{role, parts}` and `{message: {…}}`, with text, parts and tool calls in any
of the usual shapes. Out: `Message`s with all their text, and the names of called tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import text
from traces.lenient import items, mapping, parse_json
from traces.program import Message

MAX_DEPTH = 20
"""Maximum depth at which text is read."""
NOT_TEXT = ("type", "id", "role", "tool_call_id", "tool_use_id", "call_id", "mime_type", "status")
"""Fields of a message that a prompt does not contain as text."""
AS_JSON = ("arguments", "args", "parameters")
TOOL_CALLS = ("tool_call", "tool_use", "tool-call", "function", "function_call", "toolCall")

LISTS = ("messages", "contents", "input")
"""Fields of a request that contain its messages."""
BEFORE = ("system", "instructions", "config", "tools")
"""Fields of a request that precede its messages in the prompt."""


def messages(value: object) -> list[Message]:
    """Return the messages of a list or of JSON text, or else one message with the text."""
    parsed = from_text(value)
    fields = mapping(parsed)
    found = parsed if isinstance(parsed, list) else None
    found = found or next(filter(None, (items(fields.get(name)) for name in LISTS)), None)
    if found and all(isinstance(message, dict) for message in found):
        parts = (as_json(value) for name, value in fields.items() if name in BEFORE)
        before = "\n".join(filter(None, parts))
        inner = (mapping(message.get("message")) or message for message in found)
        listed = [Message(text(m.get("role")) or "user", flat_text(m)) for m in inner]
        return [Message("system", before), *listed] if before else listed
    content = flat_text(parsed)
    return [Message("user", content)] if content else []


def from_text(value: object) -> Any:
    """Return the JSON value in a text, or the value itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{", '"'):
        try:
            return parse_json(value.encode("utf-8", "replace"))
        except TraceRejected:
            return value
    return value


def as_json(value: object) -> str:
    """Return a value as JSON, as chat templates write tools; text as it is, and "" for None."""
    if isinstance(value, str) or not value:
        return text(value)
    return text(json.dumps(value, ensure_ascii=False))


def plain_text(content: object) -> str:
    """Return the text of a string, of a part with `text`, or of a list of these."""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(text(part) or text(mapping(part).get("text")) for part in parts)


def flat_text(value: object) -> str:
    """Return all text in a value, in order."""
    return "\n".join(_texts(value, 0))


def _texts(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield text(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)
    elif depth < MAX_DEPTH and isinstance(value, list):
        for part in value:
            yield from _texts(part, depth + 1)
    elif depth < MAX_DEPTH and isinstance(value, dict):
        for key, part in value.items():
            if key in AS_JSON and isinstance(part, dict):
                yield as_json(part)
            elif key not in NOT_TEXT:
                yield from _texts(part, depth + 1)


def called_tools(value: object) -> tuple[str, ...]:
    """Return the names of the tools that an answer calls, in order."""
    return tuple(_called(from_text(value), 0))


def _called(value: object, depth: int) -> Iterator[str]:
    for part in [value] if isinstance(value, dict) else items(value):
        call = mapping(part)
        function = mapping(call.get("function"))
        named = call.get("type") in TOOL_CALLS or "arguments" in call or "args" in call
        name = text(function.get("name")) or text(call.get("toolName"))
        name = name or (text(call.get("name")) if named else "")
        if name:
            yield name
        elif depth < MAX_DEPTH:
            for key, inner in call.items():
                if key not in BEFORE and isinstance(inner, dict | list):
                    yield from _called(inner, depth + 1)


def numbered(attributes: JsonObject, prefix: str) -> list[Any]:
    """Rebuild the list that attributes `prefix.0.name`, `prefix.1.name` … describe."""
    root: JsonObject = {}
    for key, value in attributes.items():
        if key.startswith(f"{prefix}."):
            place = root
            *path, last = key[len(prefix) + 1 :].split(".")[:MAX_DEPTH]
            for name in path:
                inner = place.setdefault(name, {})
                place = inner if isinstance(inner, dict) else place
            place[last] = value
    if not root:
        return []
    rebuilt = _with_lists(root)
    return rebuilt if isinstance(rebuilt, list) else []


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(part) for key, part in value.items()}
    if inner and all(key.isascii() and key.isdigit() and len(key) < 10 for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner
