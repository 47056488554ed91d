"""The column map of a table of LLM calls: `--columns program=session_id,start_ms=ts,…`.

In: the text of the option. Out: for each field of a call its column, and the unit of times. A unit
is a suffix of the field or of the column: `_s` (the default), `_ms`, `_us` or `_ns`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from servers.basics.errors import InvalidTrace, TraceRejected
from servers.basics.nearest import did_you_mean, nearest
from servers.basics.text import one_line
from traces.formats.native_errors import FOREIGN_FIELDS

UNITS_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
OTHER_NAMES = {
    "ms": r"(?i:milli(second)?s?|msecs?)|(?<=[a-z])Ms|(?<![A-Za-z])ms",
    "us": r"(?i:micro(second)?s?|usecs?)|(?<=[a-z])Us|(?<![A-Za-z])us",
    "ns": r"(?i:nano(second)?s?|nsecs?)|(?<=[a-z])Ns|(?<![A-Za-z])ns",
}
"""Endings of column names that state a unit in other ways than the suffixes of `UNITS_PER_S`, such
as `startMs` and `start (ms)`."""
TIMES = ("start", "end", "duration", "gap")
COUNTS = ("prompt_tokens", "output_tokens", "kept_tokens", "cached_tokens")
NAMES = ("program", "parent", "tool", "gap_provenance")
FIELDS = (*NAMES, *COUNTS, *TIMES)
REQUIRED = ("prompt_tokens", "output_tokens")
OPTION = "--columns"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    unit: str = "s"
    """Unit of a time."""
    is_stated: bool = True
    """Whether the map or a suffix of the name states the unit."""

    @property
    def units_per_s(self) -> float:
        return UNITS_PER_S[self.unit]

    @property
    def other_unit(self) -> str:
        """The unit that the end of the name suggests; "" without one, or if the unit is stated."""
        ends = OTHER_NAMES.items() if not self.is_stated else ()
        return next((unit for unit, end in ends if re.search(rf"({end})[)\]]?$", self.name)), "")


Columns = Mapping[str, Column]


def parse_columns(text: str) -> Columns:
    """Raises InvalidTrace for text that is not a map of known fields."""
    columns: dict[str, Column] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise InvalidTrace(f"{OPTION}: {one_line(part)} must be FIELD=COLUMN")
        field, unit = _with_unit(key)
        if field not in FIELDS:
            meant = nearest(field, FIELDS)
            meant += f"_{unit}" if unit and meant in TIMES else ""
            hint = f"did you mean {meant}?" if meant else f"fields are {', '.join(FIELDS)}"
            raise InvalidTrace(f"{OPTION}: no field is called {one_line(key)}; {hint}")
        if field in columns:
            raise InvalidTrace(f"{OPTION}: {field} is given twice; remove one")
        if unit is None:
            unit = _with_unit(name)[1] if field in TIMES else None
        columns[field] = Column(name, unit or "s", is_stated=unit is not None)
    if not columns:
        raise InvalidTrace(f"{OPTION}: is empty; fields are {', '.join(FIELDS)}")
    return columns


def columns_of(given: Columns | None, header: Collection[str]) -> Columns:
    """Return the map for a table with these columns. By default, columns have the names of fields.
    Raises TraceRejected for a missing column, naming the nearest one."""
    columns = dict(given) if given is not None else _named_after_fields(header)
    for field in REQUIRED:
        if field not in columns:
            near = next((c for c in header if c.casefold() in FOREIGN_FIELDS[field]), "")
            near = near or nearest(field, header)
            example = one_line(near) if near else "COLUMN"
            raise TraceRejected(
                f"no column {field}; columns are {_listed(header)}; give {OPTION} {field}={example}"
            )
    for field, column in columns.items():
        if column.name not in header:
            known = [one_line(name) for name in header]
            hint = did_you_mean(column.name, known, f"columns are {_listed(header)}")
            raise TraceRejected(f"no column {one_line(column.name)} for {field}{hint}")
    return columns


def _named_after_fields(header: Collection[str]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name in header:
        field, unit = _with_unit(name)
        if field in FIELDS:
            columns.setdefault(field, Column(name, unit or "s"))
    return columns


def _with_unit(name: str) -> tuple[str, str | None]:
    """Split a time's name into the name and the unit in its suffix."""
    match = re.fullmatch(r"(.+)_(s|ms|us|ns)", name)
    return (match[1], match[2]) if match else (name, None)


def _listed(header: Collection[str]) -> str:
    return one_line(", ".join(header))[:200]
