"""A run folder (docs/reference/run-folder.md) in; its question, its cells, and their turns as
frames out.

Cells are read one by one, so that memory holds the turns of one cell. Times in seconds on the
cell's clock, lengths in tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd
from pydantic import BaseModel

from reports.phrasing import counted
from reports.run_folder.records import MOST, MOST_CELLS, CellConfig, Done, Sweep, wrong
from servers.errors import InvalidInput, InvalidRunFolder
from traces.lenient import brief, one_line

Fields = dict[str, type | tuple[type, ...]]
Column = npt.NDArray[Any]
Turns = dict[str, Column]

PARTS = ("queue_s", "load_s", "prefill_s", "decode_s", "preempted_s", "recompute_s")
"""What a turn's time in the server is made of."""
HITS = ("device_hit_tokens", "dram_hit_tokens", "ssd_hit_tokens")
TURN_FIELDS = (
    *("program_id", "turn", "job_id", "scheduled_at_s", "sent_at_s", "finished_at_s"),
    *("first_token_at_s", "kept_tokens"),
    *("prompt_tokens", "output_tokens", *HITS, *PARTS, "preemptions", "gap_s", "wait_s", "error"),
)
"""What a report reads of a turn."""
TEXTS = ("program_id", "job_id", "error")
NUMBERS = tuple(field for field in TURN_FIELDS if field not in TEXTS)
INSIDE_OTHERS = ("load_s", "preempted_s", "recompute_s", "dram_hit_tokens", "ssd_hit_tokens")
"""Null where a live engine does not tell them apart: then prefill and decode, or the device's hits,
contain them (docs/design/live-replay.md)."""
UNTOLD = ("queue_s", "prefill_s", "decode_s", "device_hit_tokens", "preemptions")
"""Null where a live engine does not tell them at all."""
MAY_LACK = ("first_token_at_s", "kept_tokens")
"""Null or not there in lines of other tools, or of earlier versions of ours."""
VIRTUAL = {"sim": "virtual time", "vllm-virtual": "virtual time of vLLM's own scheduler"}
"""Engines that measure nothing, and what they are called."""
PIECE_BYTES = 1 << 20
"""Of lines that are read at once."""
CELL_FIELDS: Fields = {
    "variant": str,
    "jps": (int, float, type(None)),
    "seed": int,
    "arrivals": str,
    "workload": dict,
}
SWEEP_FIELDS: Fields = {"variants": list, "jps": (list, type(None)), "seeds": list, "baseline": str}


DONE_FIELDS: Fields = {"finished_programs": int}

AGAIN = "run the cell again"
"""Which the same sweep does, where `check_finished` finds what is wrong."""
ANEW = f"remove done.json there and {AGAIN}"


@dataclass(frozen=True, slots=True)
class Cell:
    folder: Path
    config: dict[str, Any]
    done: dict[str, Any] | None
    """None while it runs, and after it broke off."""

    @property
    def key(self) -> tuple[str, float | None, int]:
        return self.config["variant"], self.config["jps"], self.config["seed"]


@dataclass(frozen=True, slots=True)
class Run:
    folder: Path
    sweep: dict[str, Any]
    cells: tuple[Cell, ...]
    """Those with a `done.json`, in the order of the question: rate, variant, seed."""
    missing: tuple[tuple[str, str], ...]
    """Cells that cannot be reported, by name, and why."""


def load_run(folder: Path) -> Run:
    sweep = _read_sweep(folder)
    order = {variant["name"]: place for place, variant in enumerate(sweep["variants"])}
    cells: list[Cell] = []
    missing: list[tuple[str, str]] = []
    for path in _cell_folders(folder):
        try:
            cell = _read_cell(path)
        except InvalidRunFolder as error:
            missing.append((one_line(path.name), _failure(path) or one_line(str(error))))
            continue
        if cell.config["variant"] not in order:
            missing.append((path.name, f"{cell.config['variant']} is no variant of this sweep"))
            continue
        if cell.done is None:
            missing.append((path.name, _failure(path) or _progress(path)))
        cells.append(cell)
    missing += _never_begun(sweep, cells, {name for name, _ in missing})
    finished = sorted(
        (cell for cell in cells if cell.done is not None),
        key=lambda c: (c.key[1] or 0.0, order[c.key[0]], c.key[2]),
    )
    return Run(folder, sweep, tuple(finished), tuple(sorted(missing)))


def read_turns(cell: Cell) -> pd.DataFrame:
    """`read_columns` as a frame."""
    return pd.DataFrame(read_columns(cell))


def read_columns(cell: Cell) -> Turns:
    """By field of `TURN_FIELDS`, a value per turn: numbers NaN where the engine does not tell them,
    0 where the turn failed before. A torn last line is left out."""
    path = cell.folder / "turns.jsonl"
    same: dict[str, str] = {}
    try:
        pieces = [_columns(records, same) for records in _pieces(path)]
        if not pieces:
            raise InvalidRunFolder(f"{path}: holds no turn; {AGAIN}")
        turns = {field: np.concatenate([p.pop(field) for p in pieces]) for field in TURN_FIELDS}
    except InvalidRunFolder:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidRunFolder(
            f"{path}{_unfit(path) or f': {brief(str(error))}'}; {ANEW}"
        ) from None
    live = cell.config.get("engine") not in VIRTUAL
    for field in INSIDE_OTHERS if live else ():
        turns[field][np.isnan(turns[field])] = 0.0
    failed = failed_turns(turns)
    _refuse_large(path, turns)
    _refuse_gaps(path, turns, failed, (*MAY_LACK, *UNTOLD) if live else MAY_LACK)
    _refuse_backwards(path, turns, failed)
    if failed.any():
        for field in NUMBERS:
            turns[field][failed & np.isnan(turns[field])] = 0.0
    return turns


def _unfit(path: Path) -> str | None:
    """Place and value of the first that no column takes."""
    before = 0
    for records in _pieces(path):
        if not _fits(records, TURN_FIELDS):
            for number, record in enumerate(records, before + 1):
                for field in TURN_FIELDS:
                    if not _fits([record], (field,)):
                        return f", line {number}: {field} is {brief(record.get(field))}"
        before += len(records)
    return None


def _fits(records: list[dict[str, Any]], fields: Sequence[str]) -> bool:
    try:
        for field in fields:
            _column(field, tuple(record.get(field) for record in records))
    except (ValueError, TypeError):
        return False
    return True


def failed_turns(turns: Turns) -> Column:
    return np.asarray(pd.notna(turns["error"]))


def _refuse_large(path: Path, turns: Turns) -> None:
    for field in NUMBERS:
        large = np.abs(turns[field]) > MOST
        if large.any():
            line = int(np.argmax(large)) + 1
            raise InvalidRunFolder(f"{path}, line {line}: {field} is no number of a run; {ANEW}")


def _refuse_gaps(path: Path, turns: Turns, failed: Column, may_lack: Sequence[str]) -> None:
    for field in TEXTS:
        kinds = {str, type(None)} if field == "error" else {str}
        if not set(map(type, turns[field])) <= kinds:
            line = next(n for n, v in enumerate(turns[field], 1) if type(v) not in kinds)
            raise InvalidRunFolder(f"{path}, line {line}: a turn whose {field} is no text; {ANEW}")
    told = [field for field in NUMBERS if field not in may_lack]
    lacking = np.isnan(np.stack([turns[field] for field in told], axis=1)) & ~failed[:, None]
    if lacking.any():
        line, place = map(int, np.argwhere(lacking)[0])
        raise InvalidRunFolder(f"{path}, line {line + 1}: a turn without {told[place]}; {ANEW}")


def _refuse_backwards(path: Path, turns: Turns, failed: Column) -> None:
    backwards = ~failed & (turns["finished_at_s"] <= turns["scheduled_at_s"])
    if backwards.any():
        line = int(np.argmax(backwards)) + 1
        raise InvalidRunFolder(f"{path}, line {line}: a turn that ends before it begins; {ANEW}")


def _columns(records: list[dict[str, Any]], same: dict[str, str]) -> dict[str, Column]:
    """`same`: one copy of each text, since a program's id stands in all its lines."""
    try:
        rows = list(map(itemgetter(*TURN_FIELDS), records))
    except KeyError:
        rows = [tuple(map(record.get, TURN_FIELDS)) for record in records]
    columns = dict(zip(TURN_FIELDS, zip(*rows, strict=True), strict=True))
    for field in TEXTS:
        columns[field] = tuple(
            same.setdefault(v, v) if isinstance(v, str) else v for v in columns[field]
        )
    return {field: _column(field, values) for field, values in columns.items()}


def _column(field: str, values: tuple[Any, ...]) -> Column:
    column = np.array(values, dtype=object if field in TEXTS else float)
    if column.ndim != 1:  # numpy takes lists of one length for a table
        raise InvalidInput(f"a turn's {field} is a list")
    return column


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """None of a file that is not there; a torn last line is left out."""
    return chain.from_iterable(_pieces(path))


def _pieces(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Some thousand lines at a time, which is as fast as all at once and takes no memory."""
    if not path.is_file():
        return
    before = 0
    with path.open("rb") as file:
        while lines := file.readlines(PIECE_BYTES):
            if not lines[-1].endswith(b"\n"):  # was being written when the process died
                lines.pop()
            if lines:
                yield _objects(path, lines, before)
            before += len(lines)


def _objects(path: Path, lines: list[bytes], before: int) -> list[dict[str, Any]]:
    try:
        records: list[Any] = orjson.loads(b"[%s]" % b",".join(lines))
        good = len(records) == len(lines) and all(isinstance(r, dict) for r in records)
    except orjson.JSONDecodeError:
        good = False
    if not good:
        number = before + [_is_object(line) for line in lines].index(False) + 1
        raise InvalidRunFolder(f"{path}, line {number}: not a JSON object; {ANEW}")
    return records


def checked_lines(path: Path, model: type[BaseModel]) -> list[dict[str, Any]]:
    """With each line as `reports.run_folder.records` has it."""
    lines = list(json_lines(path))
    for number, line in enumerate(lines, 1):
        if (why := wrong(model, line)) is not None:
            raise InvalidRunFolder(one_line(f"{path}, line {number}: {why}; {ANEW}"))
    return lines


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _read_sweep(folder: Path) -> dict[str, Any]:
    path = folder / "sweep.json"
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise InvalidRunFolder(f"{folder}: {what}; name the one that `bench sweep` wrote")
    if not path.is_file():
        if (folder / "cell.json").is_file():
            raise InvalidRunFolder(f"{folder} is one cell of a run; name its run, {folder.parent}")
        raise InvalidRunFolder(f"{folder} is no run: it holds no sweep.json; name one under runs/")
    sweep = _read_object(path, "turnstile-sweep-1")
    _check(path, sweep, SWEEP_FIELDS, "run the sweep again")
    _refuse_wrong(path, Sweep, sweep, "run the sweep again")
    if len(sweep["variants"]) * len(sweep["jps"] or [0]) * len(sweep["seeds"]) > MOST_CELLS:
        raise InvalidRunFolder(
            f"{path}: asks for more than {MOST_CELLS:,} cells; run the sweep again"
        )
    return sweep


def _read_cell(folder: Path) -> Cell:
    config = _read_object(folder / "cell.json", "turnstile-cell-1")
    _check(folder / "cell.json", config, CELL_FIELDS, AGAIN)
    _refuse_wrong(folder / "cell.json", CellConfig, config, AGAIN)
    path = folder / "done.json"
    done = _read_object(path) if path.is_file() else None
    if done is not None:
        _check(path, done, DONE_FIELDS, AGAIN)
        _refuse_wrong(path, Done, done, AGAIN)
    return Cell(folder, config, done)


def check_finished(folder: Path) -> None:
    """Raises where no report can read a cell with a `done.json`. Of its turns, which may be many,
    it looks only whether there are any, the last one whole."""
    _read_cell(folder)
    path = folder / "turns.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() == b"\n":
                return
    except OSError:  # not there, or empty
        pass
    raise InvalidRunFolder(f"{path}: holds no turn, or not all; {AGAIN}")


def _refuse_wrong(path: Path, model: type[BaseModel], value: dict[str, Any], remedy: str) -> None:
    if (why := wrong(model, value)) is not None:
        raise InvalidRunFolder(one_line(f"{path}: {why}; {remedy}"))


def _check(path: Path, value: dict[str, Any], fields: Fields, remedy: str) -> None:
    for field, kind in fields.items():
        if field not in value:
            raise InvalidRunFolder(f"{path}: lacks {field}; {remedy}")
        if not isinstance(value[field], kind):
            raise InvalidRunFolder(f"{path}: {field} is {value[field]!r:.40}; {remedy}")


def _read_object(path: Path, expected: str | None = None) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidRunFolder(f"{path}: not there; {AGAIN}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRunFolder(f"{path}: cannot be read: {reason}") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRunFolder(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidRunFolder(f"{path}: not a JSON object")
    found = value.get("format")
    if expected not in (None, found):
        raise InvalidRunFolder(f"{path}: format is {found!r}, this version reads {expected!r}")
    return value


def _cell_folders(folder: Path) -> list[Path]:
    """Without what a resumed sweep set aside."""
    found = {
        path.parent for name in ("cell.json", "failed.json") for path in folder.glob(f"*/{name}")
    }
    return sorted(path for path in found if ".aside-" not in path.name)


def _failure(folder: Path) -> str | None:
    path = folder / "failed.json"
    if not path.is_file():
        return None
    try:
        return one_line(f"failed: {_read_object(path).get('error')}")
    except InvalidRunFolder as error:
        return f"failed, and nobody knows why: {error}"


def _progress(folder: Path) -> str:
    path = folder / "turns.jsonl"
    lines = path.read_bytes().count(b"\n") if path.is_file() else 0
    return f"not finished: {counted(lines, 'turn')} so far"


def _never_begun(
    sweep: dict[str, Any], cells: Iterable[Cell], unreadable: set[str]
) -> list[tuple[str, str]]:
    begun = {cell.key for cell in cells}
    wanted = [
        (variant["name"], jps, seed)
        for jps in sweep["jps"] or [None]
        for variant in sweep["variants"]
        for seed in sweep["seeds"]
    ]
    arrivals = str(sweep.get("arrivals"))
    names = [cell_name(*key, arrivals) for key in wanted if key not in begun]
    return [(name, "not run yet") for name in names if name not in unreadable]


def cell_name(variant: str, jps: float | None, seed: int, arrivals: str) -> str:
    """As a sweep names the folder."""
    load = arrivals if jps is None else f"jps{jps:g}"
    variant, load = (re.sub(r"[^A-Za-z0-9.+-]+", "-", t).strip("-.") for t in (variant, load))
    return f"{variant}_{load}_seed{seed}"
