"""Reads a run folder (docs/reference/run-folder.md).

In: a folder. Out: the settings of its sweep, and its cells. Raises InvalidRunFolder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from reports.run_folder.checksums import check_checksums
from reports.run_folder.documents import MAX_CELLS, CellConfig, Done, Sweep, problem
from reports.run_folder.lines import RERUN
from reports.run_folder.machines import refuse_members
from servers.basics.errors import InvalidRunFolder
from servers.basics.phrasing import counted
from servers.basics.text import one_line

NOT_RUN, NOT_FINISHED = "not run yet", "not finished"
"""Reasons why a cell has no result, if it did not fail."""


@dataclass(frozen=True, slots=True)
class Cell:
    folder: Path
    config: dict[str, Any]
    done: dict[str, Any] | None
    """None if the cell has not finished."""

    @property
    def key(self) -> tuple[str, float | None, int]:
        return self.config["variant"], self.config["jps"], self.config["seed"]

    @property
    def repeat(self) -> int:
        """The number of the measurement, from 1, of a cell that runs several times."""
        return self.config.get("repeat") or 1


@dataclass(frozen=True, slots=True)
class Run:
    folder: Path
    sweep: dict[str, Any]
    cells: tuple[Cell, ...]
    """Cells with a `done.json`, in the order of rate, variant and seed in the sweep."""
    missing: tuple[tuple[str, str], ...]
    """Names of cells without a result, and the reasons."""


def load_run(folder: Path) -> Run:
    sweep = read_sweep(folder)
    order = {variant["name"]: index for index, variant in enumerate(sweep["variants"])}
    cells: list[Cell] = []
    missing: list[tuple[str, str]] = []
    for path in _cell_folders(folder):
        try:
            cell = read_cell(path)
        except InvalidRunFolder as error:
            missing.append((one_line(path.name), _failure(path) or one_line(str(error))))
            continue
        if cell.config["variant"] not in order:
            variant = cell.config["variant"]
            missing.append((path.name, f"this sweep has no variant {variant}"))
            continue
        if cell.done is None:
            missing.append((path.name, _failure(path) or _progress(path)))
        cells.append(cell)
    missing += _not_started(sweep, cells, {name for name, _ in missing})
    finished = sorted(
        (cell for cell in cells if cell.done is not None),
        key=lambda c: (c.key[1] or 0.0, order[c.key[0]], c.key[2], c.repeat),
    )
    return Run(folder, sweep, tuple(finished), tuple(sorted(missing)))


def read_sweep(folder: Path) -> dict[str, Any]:
    path = folder / "sweep.json"
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise InvalidRunFolder(f"{folder}: {what}; give a folder that `bench sweep` wrote")
    if not path.is_file():
        refuse_members(folder)
        if (folder / "cell.json").is_file():
            raise InvalidRunFolder(f"{folder} is a cell of a run; give the run, {folder.parent}")
        raise InvalidRunFolder(
            f"{folder} is not a run: it has no sweep.json; give a folder under runs/"
        )
    sweep = _read_object(path, "turnstile-sweep-1")
    _refuse_invalid(path, Sweep, sweep, "run the sweep again")
    if len(sweep["variants"]) * len(sweep["jps"] or [0]) * len(sweep["seeds"]) > MAX_CELLS:
        raise InvalidRunFolder(f"{path}: has more than {MAX_CELLS:,} cells; run the sweep again")
    return sweep


def read_cell(folder: Path) -> Cell:
    """Read the documents of a cell. Raises InvalidRunFolder, also for a finished cell of which any
    file that reports read has changed since."""
    config = _read_object(folder / "cell.json", "turnstile-cell-1")
    _refuse_invalid(folder / "cell.json", CellConfig, config, RERUN)
    path = folder / "done.json"
    done = _read_object(path) if path.is_file() else None
    if done is not None:
        _refuse_invalid(path, Done, done, RERUN)
        check_checksums(folder)
    return Cell(folder, config, done)


def _refuse_invalid(path: Path, model: type[BaseModel], value: dict[str, Any], remedy: str) -> None:
    if (found := problem(model, value)) is not None:
        raise InvalidRunFolder(one_line(f"{path}: {found}; {remedy}"))


def _read_object(path: Path, expected: str | None = None) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidRunFolder(f"{path}: does not exist; {RERUN}") from None
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
    """Return the folders of cells, without those that a resumed sweep set aside."""
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
        return f"failed for an unknown reason: {error}"


def _progress(folder: Path) -> str:
    path = folder / "turns.jsonl"
    lines = path.read_bytes().count(b"\n") if path.is_file() else 0
    return f"{NOT_FINISHED}: {counted(lines, 'turn')} recorded"


def _not_started(
    sweep: dict[str, Any], cells: Iterable[Cell], unreadable: set[str]
) -> list[tuple[str, str]]:
    started = {(*cell.key, cell.repeat) for cell in cells}
    planned = [
        (variant["name"], jps, seed, repeat)
        for jps in planned_rates(sweep)
        for variant in sweep["variants"]
        for seed in sweep["seeds"]
        for repeat in sweep.get("repeats") or [1]
    ]
    arrivals = str(sweep.get("arrivals"))
    names = [cell_name(*key, arrivals) for key in planned if key not in started]
    return [(name, NOT_RUN) for name in names if name not in unreadable]


def planned_rates(sweep: Mapping[str, Any]) -> list[float | None]:
    """Return the rates at which all variants run; [None] for a load without a rate. A search for
    capacities may have none."""
    rates: list[float | None] = sweep["jps"] or []
    return rates if rates or sweep.get("search") else [None]


def cell_name(variant: str, jps: float | None, seed: int, repeat: int, arrivals: str) -> str:
    """Return the name of a cell's folder."""
    load = arrivals if jps is None else f"jps{jps:g}"
    variant, load = (re.sub(r"[^A-Za-z0-9.+-]+", "-", t).strip("-.") for t in (variant, load))
    return f"{variant}_{load}_seed{seed}{f'_repeat{repeat}' if repeat > 1 else ''}"
