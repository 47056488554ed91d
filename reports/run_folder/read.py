"""Reads a run folder (docs/reference/run-folder.md).

In: a folder. Out: the settings of its sweep, and its cells. Raises InvalidRunFolder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reports.loads import ladder_of
from reports.run_folder.document import read_document
from reports.run_folder.lines import RERUN, check_checksums, read_text
from reports.run_folder.members import refuse_members
from servers.basics.errors import InvalidInput, InvalidRunFolder
from servers.basics.nearest import did_you_mean
from servers.basics.phrasing import counted, listed
from servers.basics.text import one_line, slug
from servers.records.cell import CellRecord
from servers.records.done import DoneRecord, FailedRecord
from servers.records.sweep import SweepRecord

NOT_RUN, NOT_FINISHED = "not run yet", "not finished"
"""Reasons why a cell has no result, if it did not fail."""
NOT_DONE = DoneRecord(finished_programs=0, failed_turns=0)


@dataclass(frozen=True, slots=True)
class CellRun:
    folder: Path
    config: CellRecord
    done: DoneRecord
    """`NOT_DONE` if the cell has not finished."""

    @property
    def key(self) -> tuple[str, float | None, int]:
        return self.config.variant, self.config.amount, self.config.seed

    @property
    def repeat(self) -> int:
        """The number of the measurement, from 1, of a cell that runs several times."""
        return self.config.repeat


@dataclass(frozen=True, slots=True)
class Run:
    folder: Path
    sweep: SweepRecord
    cells: tuple[CellRun, ...]
    """Cells with a `done.json`, in the order of rate, variant and seed in the sweep."""
    missing: tuple[tuple[str, str], ...]
    """Names of cells without a result, and the reasons."""


def load_run(folder: Path) -> Run:
    sweep = read_sweep(folder)
    order = {variant.name: index for index, variant in enumerate(sweep.variants)}
    cells: list[CellRun] = []
    missing: list[tuple[str, str]] = []
    for path in _cell_folders(folder):
        try:
            cell = read_cell(path)
        except InvalidRunFolder as error:
            missing.append((one_line(path.name), _failure(path) or one_line(str(error))))
            continue
        if cell.config.variant not in order:
            variant = cell.config.variant
            missing.append((path.name, f"this sweep has no variant {variant}"))
            continue
        if cell.done is NOT_DONE:
            missing.append((path.name, _failure(path) or _progress(path)))
        cells.append(cell)
    missing += _not_started(sweep, cells, {name for name, _ in missing})
    finished = sorted(
        (cell for cell in cells if cell.done is not NOT_DONE),
        key=lambda c: (c.key[1] or 0.0, order[c.key[0]], c.key[2], c.repeat),
    )
    return Run(folder, sweep, tuple(finished), tuple(sorted(missing)))


def read_sweep(folder: Path) -> SweepRecord:
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
    return read_document(path, SweepRecord, "run the sweep again")


def read_cell(folder: Path) -> CellRun:
    """Read the documents of a cell. Raises InvalidRunFolder, also if a file of a finished cell that
    reports read has changed since."""
    config = read_config(folder)
    if not (folder / "done.json").is_file():
        return CellRun(folder, config, NOT_DONE)
    done = read_done(folder)
    check_checksums(folder)
    return CellRun(folder, config, done)


def read_config(folder: Path) -> CellRecord:
    return read_document(folder / "cell.json", CellRecord, RERUN)


def read_done(folder: Path) -> DoneRecord:
    return read_document(folder / "done.json", DoneRecord, RERUN)


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
        return one_line(f"failed: {read_document(path, FailedRecord, RERUN).error}")
    except InvalidRunFolder as error:
        return f"failed for an unknown reason: {error}"


def _progress(folder: Path) -> str:
    lines = 0
    with suppress(InvalidRunFolder):
        lines = read_text(folder / "turns.jsonl").count(b"\n")
    return f"{NOT_FINISHED}: {counted(lines, 'turn')} recorded"


def _not_started(
    sweep: SweepRecord, cells: Iterable[CellRun], unreadable: set[str]
) -> list[tuple[str, str]]:
    started = {(*cell.key, cell.repeat) for cell in cells}
    planned = [
        (variant.name, amount, seed, repeat)
        for amount in planned_amounts(sweep)
        for variant in sweep.variants
        for seed in sweep.seeds
        for repeat in sweep.repeats
    ]
    arrivals = str(sweep.arrivals)
    names = [cell_name(*key, arrivals) for key in planned if key not in started]
    return [(name, NOT_RUN) for name in names if name not in unreadable]


def planned_amounts(sweep: SweepRecord) -> list[float | None]:
    """Return the loads under which all variants run; [None] for a load without a number. A search
    for capacities may have none."""
    amounts = list(sweep.amounts)
    return amounts if amounts or sweep.search else [None]


def cell_name(variant: str, amount: float | None, seed: int, repeat: int, arrivals: str) -> str:
    load = arrivals if amount is None else f"{ladder_of(arrivals).option}{amount:g}"
    return f"{slug(variant)}_{slug(load)}_seed{seed}{f'_repeat{repeat}' if repeat > 1 else ''}"


def refuse_unknown(option: str, names: Sequence[str], known: Sequence[str], run: Path) -> None:
    """Raise InvalidInput for a name that is not in `known`. `option` was given the names."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"choose from {listed(known)}" if known else "")
            raise InvalidInput(f"{option} {name}: {run} has no such cell{hint}")
