"""Exports tables of the turns and of the jobs of cells, as CSV or Parquet.

Cells are written one by one, so that memory holds the turns of one cell. docs/reference/report.md
defines the columns: seconds on the cell's clock, and tokens. Values that an engine does not report
are empty.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from msgspec import to_builtins

from reports.metrics.alone import machine_of
from reports.metrics.jct import job_columns
from reports.metrics.steady import measured_turns
from reports.metrics.waterfall import WATERFALL
from reports.run_folder.lines import read_records
from reports.run_folder.read import CellRun
from reports.run_folder.turns import HITS, PARTS, TRANSFER, read_columns
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
    "str": "text", "tuple[str, ...]": "texts", "Count": "whole", "Tokens": "whole",
    "Seconds": "number", "bool": "flag",
}  # fmt: skip
"""By the type in `TurnRecord`, without null."""
TURN_COLUMNS = (
    *("program_id", "turn", "job_id", "job_index", "background", "replica", "prefill_replica"),
    *("scheduled_at_s", "sent_at_s", "first_token_at_s", "finished_at_s"),
    *("prompt_tokens", "output_tokens", "kept_tokens", *HITS, *PARTS, *TRANSFER),
    *("transfer_tokens", "preemptions", "pinned_hit"),
    *("gap_s", "gap_provenance", "wait_s", "tools", "error"),
)
_TYPES = {name: kind.split(" | ")[0] for name, kind in TurnRecord.__annotations__.items()}
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
"""The columns of `reports.metrics.jct.job_columns`. The JCT of a failed job is meaningless, as is
that of a job that is not measured: a stream ends before its last jobs have finished."""


Append = Callable[[Sequence[Row]], None]
"""Writes the rows of a cell."""
Opens = Callable[[Path, Mapping[str, Kind]], AbstractContextManager[Append]]
"""Opens a file with these columns."""


def rows_of(cell: CellRun, name: str, unstable: bool) -> tuple[list[Row], list[Row]]:
    """Return the rows of the turns and of the jobs. An unstable cell has no measured jobs. Raises
    InvalidRunFolder."""
    config = cell.config
    fields = ("hardware", "model", "variant", "jps", "agents", "seed")
    common = {"cell": name, **{field: getattr(config, field) for field in fields}}
    every_turn = read_columns(cell)
    measured = frozenset() if unstable else frozenset(measured_turns(cell, every_turn)["job_id"])
    columns = pd.DataFrame(job_columns(every_turn, machine_of(cell)))
    frame = columns.assign(measured=columns["job_id"].isin(measured))
    jobs: list[Any] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    turns = map(to_builtins, read_records(cell.folder / "turns.jsonl", TurnRecord))
    return (
        [common | turn | {"measured": turn["job_id"] in measured} for turn in turns],
        [common | job for job in jobs],
    )


@contextmanager
def open_csv(path: Path, columns: Mapping[str, Kind]) -> Iterator[Append]:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        yield lambda rows: writer.writerows(
            [_csv_value(row.get(name), kind) for name, kind in columns.items()] for row in rows
        )


def _csv_value(value: Any, kind: Kind) -> Any:
    if kind in ("text", "texts"):
        return escape_formula((value if kind == "text" else ",".join(value or ())) or "")
    return str(value).lower() if kind == "flag" and value is not None else value


@contextmanager
def open_parquet(path: Path, columns: Mapping[str, Kind]) -> Iterator[Append]:
    """Each cell is a row group."""
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
        yield lambda rows: writer.write_table(pa.Table.from_pylist(list(rows), schema))
