"""Helpers for loaders of JSON Lines, and of lists of single requests.

In: bytes. Out: the objects on the lines, and programs of one turn for requests without a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import brief
from traces.lenient import (
    MAX_START_S,
    Repairs,
    line_start,
    lines,
    mapping,
    moment,
    number,
    parse_json,
    seconds,
    tokens,
)

INCOMPLETE_LINE = "an incomplete line: left out"


def first_row(first_bytes: bytes) -> JsonObject:
    """Return the object on a file's first line, for `sniff`."""
    return mapping(line_start(first_bytes))


def rows(data: bytes, repairs: Repairs) -> Iterator[JsonObject]:
    """Yield the objects of JSON Lines, or of a JSON list on one line."""
    for line in lines(data):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            repairs.add("a line that is not a complete JSON object: left out")
            continue
        for row in value if isinstance(value, list) else [value]:
            if isinstance(row, dict):
                yield row
            else:
                repairs.add("a line that is not a complete JSON object: left out")


def line_documents(data: bytes, repairs: Repairs) -> Iterator[Any]:
    """Yield the JSON document on each line."""
    for line in lines(data):
        if not line.strip():
            continue
        try:
            document = parse_json(line)
        except TraceRejected:
            repairs.add(INCOMPLETE_LINE)
        else:
            yield document


def documents(data: bytes, repairs: Repairs) -> Iterator[Any]:
    """Yield the document of a file, or the documents on its lines."""
    first_line, _, others = data.lstrip().partition(b"\n")
    try:
        parse_json(first_line)
    except TraceRejected:
        others = b""
    if not others.strip():
        yield parse_json(data)
        return
    yield from line_documents(data, repairs)


def lengths(prompt: object, output: object, repairs: Repairs) -> tuple[int, int] | None:
    """Return the tokens of a prompt and its output; None, and report a repair, without a prompt."""
    prompt_tokens, output_tokens = tokens(prompt), tokens(output)
    if not prompt_tokens:
        repairs.add(f"a request with {brief(prompt)} prompt tokens: left out")
        return None
    if not output_tokens:
        repairs.add(f"a request with {brief(output)} output tokens: set to 1")
        output_tokens = 1
    return prompt_tokens, output_tokens


def in_seconds(value: object, units_per_s: float) -> float | None:
    """Return a plausible duration or time in seconds, from a number in another unit."""
    found = number(value)
    return None if found is None else seconds(found / units_per_s)


def clock_s(value: object, units_per_s: float = 1.0) -> float | None:
    """Return a time in seconds: Unix time from ISO 8601 text, in UTC if it has no zone, or a number
    in this unit from any origin."""
    if isinstance(value, str) and (at_s := moment(value.strip())) is not None:
        return at_s
    found = number(value)
    if found is None or not 0 <= found / units_per_s <= MAX_START_S:
        return None
    return found / units_per_s
