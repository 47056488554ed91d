"""Exports tables of the turns and of the jobs of cells, as CSV or Parquet.

Cells are written one by one, so that memory holds the turns of one cell. docs/reference/report.md
defines the columns: seconds on the cell's clock, and tokens. Values that an engine does not report
are empty.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import to_builtins

from reports.metrics.alone import machine_of
from reports.metrics.jct import jobs_of
from reports.metrics.steady import measured_turns
from reports.metrics.waterfall import WATERFALL
from reports.run_folder.document import fields_of
from reports.run_folder.lines import read_records
from reports.run_folder.read import CellRun
from reports.run_folder.turns import HITS, PARTS, TRANSFER, read_turns
from reports.table import escape_formula
from servers.basics.errors import Unavailable
from servers.records.turns import TurnRecord

Kind = Literal["text", "texts", "whole", "number", "flag"]
Row = Mapping[str, Any]

OF_CELL: dict[str, Kind] = {
    **dict.fromkeys(("cell", "hardware", "model", "variant"), "text"), "jps": "number",
    "agents": "whole", "seed": "whole",
}  # fmt: skip
KINDS: dict[str, Kind] = {
    "str": "text", "tuple": "texts", "int": "whole", "float": "number", "bool": "flag",
}  # fmt: skip
TURN_COLUMNS = (
    *("program_id", "turn", "job_id", "job_index", "background", "replica", "prefill_replica"),
    *("scheduled_at_s", "sent_at_s", "first_token_at_s", "finished_at_s"),
    *("prompt_tokens", "output_tokens", "kept_tokens", *HITS, *PARTS, *TRANSFER),
    *("transfer_tokens", "preemptions", "pinned_hit"),
    *("gap_s", "gap_provenance", "wait_s", "tools", "error"),
)
_TYPES = {field.name: field.type for field in fields_of(TurnRecord)}
TURNS: dict[str, Kind] = {
    **OF_CELL,
    **{name: KINDS[_TYPES[name]] for name in TURN_COLUMNS},
    "measured": "flag",
}
"""Fields of `TurnRecord`, and whether the job of the turn is measured. The requests of a background
are rows of turns, too."""
JOBS: dict[str, Kind] = {
    **OF_CELL,
    "job_id": "text",
    **dict.fromkeys(("arrival_s", "departure_s", "jct_s", "bubble_s", "late_s"), "number"),
    "failed": "flag",
    **dict.fromkeys((*WATERFALL, "least_s", "slowdown"), "number"),
    "measured": "flag",
}
"""The columns of `reports.metrics.jct.jobs_of`. The JCT of a failed job is meaningless, as is that
of a job that is not measured: a stream ends before its last jobs have finished."""


class TableFile(Protocol):
    def append(self, rows: Sequence[Row]) -> None: ...


Opens = Callable[[Path, Mapping[str, Kind]], Any]
"""Opens a file with these columns, as a context manager that yields a `Table`."""


def rows_of(cell: CellRun, name: str, unstable: bool) -> tuple[list[Row], list[Row]]:
    """Return the rows of the turns and of the jobs. An unstable cell has no measured jobs. Raises
    InvalidRunFolder."""
    config = cell.config
    fields = ("hardware", "model", "variant", "jps", "agents", "seed")
    common = {"cell": name, **{field: getattr(config, field) for field in fields}}
    every_turn = read_turns(cell)
    kept = measured_turns(cell, {str(name): every_turn[name].to_numpy() for name in every_turn})
    measured = frozenset() if unstable else frozenset(kept["job_id"])
    columns = jobs_of(every_turn, machine_of(cell)).reset_index()
    frame = columns.assign(measured=lambda f: f["job_id"].isin(measured))
    jobs: list[Any] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    turns = map(to_builtins, read_records(cell.folder / "turns.jsonl", TurnRecord))
    return (
        [common | turn | {"measured": turn["job_id"] in measured} for turn in turns],
        [common | job for job in jobs],
    )


@contextmanager
def open_csv(path: Path, columns: Mapping[str, Kind]) -> Iterator[TableFile]:
    with path.open("w", encoding="utf-8", newline="") as file:
        yield _Csv(file, columns)


class _Csv:
    def __init__(self, file: Any, columns: Mapping[str, Kind]) -> None:
        self._text = [name for name, kind in columns.items() if kind == "text"]
        self._texts = [name for name, kind in columns.items() if kind == "texts"]
        self._flags = [name for name, kind in columns.items() if kind == "flag"]
        self._writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        self._writer.writeheader()

    def append(self, rows: Sequence[Row]) -> None:
        self._writer.writerows(map(self._plain, rows))

    def _plain(self, row: Row) -> Row:
        texts = {name: escape_formula(",".join(row.get(name) or ())) for name in self._texts}
        texts |= {name: escape_formula(row.get(name) or "") for name in self._text}
        flags = {name: _flag(row.get(name)) for name in self._flags}
        return {**row, **texts, **flags}


def _flag(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


@contextmanager
def open_parquet(path: Path, columns: Mapping[str, Kind]) -> Iterator[TableFile]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise Unavailable(
            "--format parquet: needs pyarrow; pip install pyarrow, or use --format csv"
        ) from None
    types = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "whole": pa.int64(),
        "number": pa.float64(),
        "flag": pa.bool_(),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        yield _Parquet(writer, lambda rows: pa.Table.from_pylist(rows, schema))


class _Parquet:
    def __init__(self, writer: Any, table: Callable[[list[Row]], Any]) -> None:
        self._writer = writer
        self._table = table

    def append(self, rows: Sequence[Row]) -> None:
        """Write a row group with the rows of a cell."""
        self._writer.write_table(self._table(list(rows)))
