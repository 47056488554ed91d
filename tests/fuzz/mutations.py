"""Derive hostile inputs from valid ones, using one `Random`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

DEEP = "@deep@"
"""Placeholder for deep nesting, which `json.dumps` could not write."""
DEPTHS = (50, 400, 950, 1_100, 20_000)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 63, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30)),
    *(0.5, -0.0, 1e-320, 1e9, 1e15, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "0", "-1", "1e5", "nan", "a" * 5_000, "\x00", "\ud800", "\r\n", "\x1b[31m\x07"),
    *(
        "../../x",
        "/etc/passwd",
        "a/b",
        "..",
        "<script>alert(1)</script>",
        '"><img src=x onerror=x>',
    ),
    *("{{7*7}}", "=1+1", "javascript:alert(1)", "\u202e", "%s%n", "a,b\tc"),
    *([], {}, [[]], [None], [1, "a"], {"a": {"b": 1}}, DEEP),
)
BYTES = (
    b"\x00",
    b"\xff",
    b"\n",
    b"\r",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"e9",
    b"-",
)


def mutated(sample: bytes, random: Random) -> bytes:
    """Make one to four successive changes."""
    data = sample
    for _ in range(random.randint(1, 4)):
        data = random.choices((_json, _bytes, _lines), (7, 2, 1))[0](data, random)
    return data


def mutated_gzip(data: bytes, random: Random) -> bytes:
    """Compress the data, and sometimes damage the result."""
    packed = gzip.compress(data, 1)
    return _bytes(packed, random) if random.random() < 0.3 else packed


def _json(data: bytes, random: Random) -> bytes:
    """Change a value of the document or, in JSON lines, of one line."""
    lines = data.split(b"\n")
    index = random.randrange(len(lines))
    try:
        try:
            document, rest = json.loads(data), None
        except ValueError:
            document, rest = json.loads(lines[index]), lines
    except (ValueError, RecursionError):
        return _bytes(data, random)
    changed = _written(_changed(document, random), random)
    if rest is None:
        return changed
    return b"\n".join([*lines[:index], changed, *lines[index + 1 :]])


def _written(document: Any, random: Random) -> bytes:
    try:
        text = json.dumps(document, ensure_ascii=random.random() < 0.5)
    except RecursionError:
        return b"[]"
    if DEEP in text:
        depth = random.choice(DEPTHS)
        opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
        text = text.replace(f'"{DEEP}"', opening * depth + "1" * (opening != "[") + closing * depth)
    return text.encode("utf-8", "surrogatepass")


def _changed(document: Any, random: Random) -> Any:
    positions = list(_positions(document))
    if not positions:
        return random.choice(VALUES)
    container, key = random.choice(positions)
    change = random.randrange(6)
    if change < 3:
        container[key] = random.choice(VALUES)
    elif change == 3:
        other, name = random.choice(positions)
        container[key] = _copy(other[name])
    elif change == 4:
        del container[key]
    elif isinstance(container, list):
        container[key:key] = [container[key]] * random.randint(1, 3)
    else:
        container[random.choice((str(key) + "s", "format", "", "\x00", "type"))] = container[key]
    return document


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _positions(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container and key, without recursion, since documents may be deep."""
    rest = [value]
    while rest:
        container = rest.pop()
        if isinstance(container, dict | list):
            for key in list(container) if isinstance(container, dict) else range(len(container)):
                yield container, key
                rest.append(container[key])


def _bytes(data: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    to = min(len(data), at + random.choice((1, 1, 2, 8, 64)))
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: data[:at],
        lambda: data[at:],
        lambda: data[:at] + data[to:],
        lambda: data[:to] + data[at:],
        lambda: data[:at] + random.choice(BYTES) * random.choice((1, 1, 3, 300)) + data[at:],
        lambda: data[:at] + random.randbytes(to - at) + data[to:],
        lambda: data[:at] + bytes(b ^ 1 << random.randrange(8) for b in data[at:to]) + data[to:],
    )
    return random.choice(changes)()


def _lines(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    changes: tuple[Callable[[], list[bytes]], ...] = (
        lambda: [*lines[:a], lines[b], *lines[a + 1 :]],
        lambda: lines[:a] + lines[a + 1 :],
        lambda: lines[: a + 1] + lines[b:],
        lambda: lines[::-1],
        lambda: [*lines, lines[a]],
    )
    return b"\n".join(random.choice(changes)())
