"""Reads and writes fitted recipes: TOML files with figures and no programs."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servers.basics.atomic import write_chunks
from servers.basics.errors import InvalidTrace, TraceRejected
from servers.basics.text import describe_first_error, one_line
from traces.lenient import read_bytes
from traces.synthesis.fitted import FittedRecipe

HEAD = """\
# A workload recipe that `bench traces fit` made. `bench traces synthesize` draws programs from it.
# Lengths are in tokens, times in seconds. A list with a value for each of `quantiles` is a
# distribution. The documentation (reference, workloads) explains the other fields.
"""


def read_recipe(path: Path) -> FittedRecipe:
    """Read a recipe. Raises InvalidTrace with the file, the field and the value."""
    name = one_line(str(path))
    try:
        values = tomllib.loads(read_bytes(path).decode())
        return FittedRecipe.model_validate(values)
    except (TraceRejected, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        problem = one_line(str(error)) or "nested too deeply"
        raise InvalidTrace(f"{name}: {problem}; give a recipe of bench traces fit") from None
    except ValidationError as error:
        raise InvalidTrace(f"{name}: {one_line(describe_first_error(error))}") from None


def write_recipe(path: Path, recipe: FittedRecipe) -> None:
    """Write the file atomically. Raises CannotWrite."""
    values = recipe.model_dump(mode="json", exclude_none=True)
    text = HEAD + "\n".join(_lines(values, ()))
    write_chunks(path, [text.encode()])


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield TOML with one line for each value. Tables of numbers are inline."""
    inner = {key: value for key, value in table.items() if _is_table(value)}
    if path and len(inner) < len(table):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        yield from _lines(value, (*path, key))


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and any(not isinstance(v, int | float) for v in value.values())


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)
