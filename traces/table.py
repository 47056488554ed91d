"""Reads tables of LLM calls: CSV, Parquet or JSON Lines with one call per row, and a column map.

In: the bytes of the table and a map of columns (`traces.columns`). Out: a program for each
value of the column `program`, in order of time; without that column, a program of one turn for each
row.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from servers.basics.errors import TraceRejected, Unavailable
from servers.basics.text import brief, identifier, one_line
from traces.columns import OPTION, TIMES, UNIT_WORDS, UNITS_PER_S, Columns, columns_of
from traces.formats.mooncake import SINGLE_TURNS
from traces.formats.shared.calls import Call, stated_provenance
from traces.formats.shared.rows import clock_s, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import TimedAgent, estimate_ends, programs_of
from traces.lenient import MAX_BYTES, MAX_GAP_S, MAX_VALUES, Repairs, number, tokens
from traces.program import Program, Provenance

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
DELIMITERS = (",", ";", "\t", "|")
BATCH_ROWS = 1024
"""Number of rows of a Parquet file in memory as Arrow arrays."""
CLOCKS = ("start", "end")
"""Fields that are points in time."""
Row = Mapping[str, Any]


def load_table(
    data: bytes, name: str, suffix: str, columns: Columns | None, repairs: Repairs
) -> list[Program]:
    """`suffix` is the file's. Raises TraceRejected."""
    table = _csv_rows(data, repairs) if suffix in (".csv", ".tsv") else rows(data, repairs)
    first = next(table, None)
    if first is None:
        raise TraceRejected("a table without rows")
    return _TableReader(columns_of(columns, first.keys()), name, repairs).programs(first, table)


def parquet_lines(data: bytes) -> bytes:
    """Return the rows of a Parquet file as JSON Lines. Raises TraceRejected."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise Unavailable(
            "a Parquet file: needs pyarrow; pip install pyarrow, or convert it to CSV"
        ) from None
    try:
        leaves = parquet.ParquetFile(io.BytesIO(data)).schema
        texts = [leaf.path for leaf in leaves if leaf.logical_type.type == "STRING"]
        # The file stores a text of many rows once; as a dictionary, so does memory.
        file = parquet.ParquetFile(io.BytesIO(data), read_dictionary=texts)
        if file.metadata.num_rows * file.metadata.num_columns > MAX_VALUES:
            raise TraceRejected(f"may contain more than {MAX_VALUES:,} values; split it")
        lines = []
        size = 0
        for batch in file.iter_batches(BATCH_ROWS):
            size += sum(map(_unpacked_bytes, batch.columns))
            if size > MAX_BYTES:
                limit = MAX_BYTES >> 20
                raise TraceRejected(f"larger than {limit} MiB decompressed; split it")
            lines += [orjson.dumps(row, default=str) for row in batch.to_pylist()]
    except TraceRejected:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, orjson.JSONEncodeError) as error:
        raise TraceRejected(f"not a Parquet table ({brief(str(error))})") from None
    return b"\n".join(lines)


def _unpacked_bytes(array: Any) -> int:
    """Return the bytes of all values of an Arrow array, with equal texts counted each time."""
    from pyarrow import compute, types

    if types.is_dictionary(array.type):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return int(compute.sum(lengths).as_py() or 0)
    if types.is_struct(array.type):
        return sum(map(_unpacked_bytes, array.flatten()))
    if types.is_list(array.type):
        return _unpacked_bytes(array.flatten())
    return int(array.nbytes)


def _csv_rows(data: bytes, repairs: Repairs) -> Iterator[Row]:
    try:
        # Decodes line by line: a `StringIO` takes four bytes for each character.
        content = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
        header = content.readline()
        content.seek(0)
        delimiter = max(DELIMITERS, key=header.count)
        for row in csv.DictReader(content, delimiter=delimiter):
            without_column = row.pop(None, ())
            if any(cell.strip() for cell in without_column):
                repairs.add("a row with more cells than the header: the last ones are left out")
            yield row
    except UnicodeDecodeError:
        raise TraceRejected(f"not text in UTF-8{_first_invalid(data)}") from None
    except csv.Error as error:
        raise TraceRejected(f"not a CSV table ({error})") from None


def _first_invalid(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f" (byte {error.start})"
    return ""


def _unit_of(value: object) -> str:
    """Return the unit in which a number is a plausible Unix time; "" if there is none."""
    found = number(value)
    units = (unit for unit, per_s in UNITS_PER_S.items() if found and 1e8 <= found / per_s < 1e10)
    return next(units, "")


class _TableReader:
    def __init__(self, columns: Columns, name: str, repairs: Repairs) -> None:
        self.columns = columns
        self.name = name
        self.repairs = repairs
        self.agents: dict[str, TimedAgent] = {}
        self.timed: set[str] = set()
        """Fields with a value that is a time."""
        self.not_times: dict[str, Any] = {}
        """The first value of a field that is not a time."""

    def programs(self, first: Row, table: Iterator[Row]) -> list[Program]:
        self._check_units(first)
        self._add(0, first)
        for place, row in enumerate(table, 1):
            self._add(place, row)
        if not self.agents:
            raise TraceRejected("no row with prompt tokens")
        self._check_times()
        for agent in self.agents.values():
            if "gap" not in self.columns and len(agent.calls) > 1:
                estimate_ends(agent.calls, self.repairs)
        if "kept_tokens" not in self.columns and any(
            len(a.calls) > 1 for a in self.agents.values()
        ):
            self.repairs.add("no column kept_tokens: prompts that grow are taken to repeat the "
                             "previous one (inferred)")  # fmt: skip
        return programs_of(self.agents.values(), self.repairs)[0]

    def _value(self, row: Row, field: str) -> Any:
        column = self.columns.get(field)
        return None if column is None else row.get(column.name)

    def _time(self, row: Row, field: str) -> float | None:
        column = self.columns.get(field)
        if column is None:
            return None
        value = row.get(column.name)
        read = clock_s if field in CLOCKS else in_seconds
        time_s = read(value, column.units_per_s)
        if time_s is not None:
            self.timed.add(field)
        elif value is not None and str(value).strip():
            self.not_times.setdefault(field, value)
            if field != "gap":
                self.repairs.add(f"a {field} of {brief(value)}, which is not a time: left out")
        return time_s

    def _check_units(self, first: Row) -> None:
        """Raises TraceRejected for a time whose unit is implied only by the column's name, without
        a suffix."""
        for field, column in self.columns.items():
            if field in TIMES and (stated := column.other_unit):
                raise TraceRejected(
                    f"column {one_line(column.name)} as {field}: {brief(first.get(column.name))} "
                    f"is in {UNIT_WORDS[stated]} by the column's name; give {OPTION} "
                    f"{field}_{stated}={one_line(column.name)}"
                )

    def _check_times(self) -> None:
        """Raises TraceRejected for a time column without any time."""
        for field, value in self.not_times.items():
            if field in self.timed:
                continue
            column = self.columns[field]
            name, unit = one_line(column.name), UNIT_WORDS[column.unit]
            what = f"column {name} as {field}: {brief(value)} is not a time in {unit}"
            kind = "numbers or ISO 8601 times" if field in CLOCKS else "numbers"
            other = _unit_of(value)
            raise TraceRejected(
                f"{what}; give {OPTION} {field}_{other}={name} if it is in {UNIT_WORDS[other]}"
                if other
                else f"{what}; give a column of {kind} ({field}_ms=COLUMN if in milliseconds)"
            )

    def _add(self, place: int, row: Row) -> None:
        prompt, output = self._value(row, "prompt_tokens"), self._value(row, "output_tokens")
        found = lengths(prompt, output, self.repairs)
        if found is None:
            return
        program = identifier(str(self._value(row, "program") or ""))
        if not program:
            self.repairs.add(SINGLE_TURNS)
            program = f"{self.name}-{place}"
        parent = identifier(str(self._value(row, "parent") or "")) or None
        agent = self.agents.setdefault(program, TimedAgent(program, [], parent))
        agent.calls.append(self._call(row, found))

    def _call(self, row: Row, found: tuple[int, int]) -> Call:
        start_s, end_s = self._time(row, "start"), self._time(row, "end")
        duration_s = self._time(row, "duration")
        if end_s is None and start_s is not None and duration_s is not None:
            end_s = start_s + duration_s
        return Call(
            *found,
            start_s,
            end_s,
            cached=tokens(self._value(row, "cached_tokens")),
            kept=tokens(self._value(row, "kept_tokens")) or 0
            if "kept_tokens" in self.columns
            else None,
            tools=tuple(filter(None, [identifier(self._value(row, "tool"))])),
            gap=self._gap(row),
        )

    def _gap(self, row: Row) -> tuple[float, Provenance] | None:
        if "gap" not in self.columns:
            return None
        gap_s = self._time(row, "gap")
        if gap_s is None:
            self.repairs.add(f"a gap of {brief(self._value(row, 'gap'))}: set to 0")
        stated = self._value(row, "gap_provenance")
        known = stated_provenance(stated, self.repairs)
        return min(gap_s or 0.0, MAX_GAP_S), known
