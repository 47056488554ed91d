"""Reads the turns of a cell as columns: one array per field of `TurnRecord`, one value per turn.

In: a cell. Out: arrays of seconds on the cell's clock, tokens, or texts. Numbers that a live engine
does not report are NaN. Only the turns of one cell are in memory at a time.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import UNSET

from reports.run_folder import lines
from reports.run_folder.read import CellRun
from servers.basics.errors import InvalidRunFolder
from servers.records.turns import TurnRecord

Column = npt.NDArray[Any]
Turns = dict[str, Column]

PARTS = ("queue_s", "load_s", "prefill_s", "decode_s", "preempted_s", "recompute_s")
"""Parts of a turn's time in the server."""
TRANSFER = ("decode_queue_s", "transfer_s")
"""Further parts if one engine computes the prompt and another one decodes."""
HITS = ("device_hit_tokens", "dram_hit_tokens", "ssd_hit_tokens")
TURN_FIELDS = (
    *("program_id", "turn", "job_id", "job_index", "scheduled_at_s", "sent_at_s", "finished_at_s"),
    *("first_token_at_s", "kept_tokens", "shared_tokens", "replica", "held_s"),
    *("prompt_tokens", "output_tokens", *HITS, *PARTS, *TRANSFER),
    *("preemptions", "gap_s", "wait_s", "error", "background"),
)
"""The fields that reports use."""
TEXTS = ("program_id", "job_id", "error")
NUMBERS = tuple(field for field in TURN_FIELDS if field not in TEXTS)
MERGED_WHEN_LIVE = ("load_s", "preempted_s", "recompute_s", "dram_hit_tokens", "ssd_hit_tokens")
"""Null if a live engine does not report them separately. Prefill and decode, or the device's hits,
then include them (docs/howto/vllm.md), so null is read as 0."""
NULL_WHEN_LIVE = ("queue_s", "prefill_s", "decode_s", "device_hit_tokens", "preemptions")
"""Null if a live engine does not report them."""
LEFT_OUT = ("job_index", "background", "replica", "held_s", *TRANSFER)
"""Left out in cells with a fixed set of jobs, without a background, with one replica in virtual
time, no router, or no disaggregation. The parts of the time are then read as 0."""
NULLABLE = (*LEFT_OUT, "first_token_at_s", "kept_tokens")
"""Null in these cells, in lines of other tools and of earlier versions."""
PIECE_RECORDS = 2000


def read_turns(cell: CellRun) -> pd.DataFrame:
    return pd.DataFrame(read_columns(cell))


def read_columns(cell: CellRun) -> Turns:
    """Return a column for each of `TURN_FIELDS`, without the requests of a background.

    Numbers are NaN if the engine does not report them, and 0 if the turn failed before. An
    incomplete last line is left out.
    """
    return read_with_background(cell)[0]


def read_with_background(cell: CellRun) -> tuple[Turns, Turns]:
    """Return the columns of the jobs' turns, and of a background's requests."""
    path = cell.folder / "turns.jsonl"
    refuse_without_turns(cell)
    collected = TurnColumns()
    for records in lines.record_pieces(path, TurnRecord):
        collected.extend(records)
    return collected.read(cell)


def refuse_without_turns(cell: CellRun) -> None:
    """Raise InvalidRunFolder if a finished cell kept its numbers only."""
    if not kept_turns(cell):
        run = shlex.quote(str(cell.folder.parent))
        raise InvalidRunFolder(
            f"{cell.folder}: its turns were not kept; run it again with bench sweep"
            f" {run}/sweep.toml --out {run} --show {cell.folder.name}"
        )


def kept_turns(cell: CellRun) -> bool:
    """Return whether a finished cell kept more than its numbers."""
    return has_turns(cell.folder) or not (cell.folder / lines.CELL_NUMBERS).is_file()


def has_turns(cell: Path) -> bool:
    return lines.find_lines(cell / "turns.jsonl") is not None


class TurnColumns:
    """Collects the turns of a cell as columns, which take a tenth of the memory of records."""

    def __init__(self) -> None:
        self._records: list[TurnRecord] = []
        self._pieces: list[Turns] = []
        self._texts: dict[str, str] = {}

    def append(self, record: TurnRecord) -> None:
        self._records.append(record)
        if len(self._records) == PIECE_RECORDS:
            self.extend(self._records)
            self._records = []

    def extend(self, records: Sequence[TurnRecord]) -> None:
        self._pieces.append(_columns(records, self._texts))

    def read(self, cell: CellRun) -> tuple[Turns, Turns]:
        """Return the columns of the jobs' turns, and of a background's requests, and
        forget them."""
        if self._records:
            self.extend(self._records)
        pieces, path = self._pieces, cell.folder / "turns.jsonl"
        if not pieces:
            raise InvalidRunFolder(f"{path}: has no turns; {lines.RERUN}")
        turns = {field: np.concatenate([p.pop(field) for p in pieces]) for field in TURN_FIELDS}
        return _checked(turns, path, live=cell.config.virtual_time is None)


def _checked(turns: Turns, path: Path, *, live: bool) -> tuple[Turns, Turns]:
    for field in MERGED_WHEN_LIVE if live else ():
        turns[field][np.isnan(turns[field])] = 0.0
    for field in TRANSFER:
        turns[field][np.isnan(turns[field])] = 0.0
    failed = failed_turns(turns)
    _refuse_null(path, turns, failed, (*NULLABLE, *NULL_WHEN_LIVE) if live else NULLABLE)
    _refuse_backwards(path, turns, failed)
    if failed.any():
        for field in NUMBERS:
            turns[field][failed & np.isnan(turns[field])] = 0.0
    beside = turns.pop("background") == 1.0
    if not beside.any():
        return turns, {field: values[:0] for field, values in turns.items()}
    if beside.all():
        raise InvalidRunFolder(f"{path}: has no turns of jobs; {lines.RERUN}")
    return only(~beside, turns), only(beside, turns)


def failed_turns(turns: Turns) -> Column:
    """Return which turns have an error."""
    return np.asarray(pd.notna(turns["error"]))


def finished(turns: Turns) -> Turns:
    """Return the turns without an error."""
    return only(~failed_turns(turns), turns)


def only(which: Column, columns: Turns) -> Turns:
    """Return the columns of the turns or jobs that a mask selects."""
    return columns if which.all() else {name: values[which] for name, values in columns.items()}


def _columns(records: Sequence[TurnRecord], texts: dict[str, str]) -> Turns:
    """Convert records to columns. `texts` keeps one copy of each text, since ids repeat."""
    rows = zip(*map(attrgetter(*TURN_FIELDS), records), strict=True)
    columns = dict(zip(TURN_FIELDS, rows, strict=True))
    for field in LEFT_OUT:
        columns[field] = tuple([None if v is UNSET else v for v in columns[field]])
    columns["shared_tokens"] = tuple(map(_shared_tokens, records))
    found = {field: np.array(columns[field], dtype=float) for field in NUMBERS}
    for field in TEXTS:
        values = [None if v is None else texts.setdefault(v, v) for v in columns[field]]
        found[field] = np.array(values, dtype=object)
    return found


def _shared_tokens(record: TurnRecord) -> int:
    """Return how many leading prompt tokens other programs may have too."""
    shared = 0 if record.shared_tokens is UNSET else record.shared_tokens
    system = record.system
    return shared if system is UNSET or system is None else max(shared, system.tokens)


def _refuse_null(path: Path, turns: Turns, failed: Column, nullable: Sequence[str]) -> None:
    required = [field for field in NUMBERS if field not in nullable]
    null = np.isnan(np.stack([turns[field] for field in required], axis=1)) & ~failed[:, None]
    if null.any():
        index, field = map(int, np.argwhere(null)[0])
        raise InvalidRunFolder(
            f"{path}, line {index + 1}: a turn lacks {required[field]}; {lines.DISCARD_AND_RERUN}"
        )


def _refuse_backwards(path: Path, turns: Turns, failed: Column) -> None:
    backwards = ~failed & (turns["finished_at_s"] <= turns["scheduled_at_s"])
    if backwards.any():
        line = int(np.argmax(backwards)) + 1
        raise InvalidRunFolder(
            f"{path}, line {line}: a turn ends before it begins; {lines.DISCARD_AND_RERUN}"
        )
