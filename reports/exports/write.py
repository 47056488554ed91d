"""A run folder in; files of one format out, of all its finished cells or of those named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from reports.exports.choose import choose
from reports.exports.chrome import chrome_trace
from reports.exports.tables import JOBS, TURNS, Opens, open_csv, open_parquet, rows_of
from reports.exports.timestamps import scheduler_timestamps
from reports.run_folder.atomic import whole, write_file
from reports.run_folder.read import Cell, load_run
from servers.errors import InvalidRunFolder

TABLES: dict[str, Opens] = {"csv": open_csv, "parquet": open_parquet}
OF_A_CELL: dict[str, tuple[str, Callable[[Cell], bytes]]] = {
    "timestamps": ("scheduler_timestamps", scheduler_timestamps),
    "chrome": ("trace.json", chrome_trace),
}
"""The file in a folder named as the cell, and what makes it; the first is the fork's name."""
FORMATS = (*TABLES, *OF_A_CELL)

Missing = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Exported:
    paths: tuple[Path, ...]
    cells: int
    missing: tuple[tuple[str, str], ...]
    """Cells that are not in them, and why."""


def export(run_folder: Path, form: str, out: Path, names: Sequence[str] = ()) -> Exported:
    chosen = choose(load_run(run_folder), names)
    write = _tables if form in TABLES else _files
    paths, missing = write(chosen.cells, form, out)
    cells = len(chosen.cells) - len(missing)
    return Exported(tuple(paths), cells, (*chosen.missing, *missing))


def _tables(cells: Sequence[Cell], form: str, out: Path) -> tuple[list[Path], Missing]:
    missing: Missing = []
    paths = [out / f"{what}.{form}" for what in ("turns", "jobs")]
    with ExitStack() as files:
        turns_table, jobs_table = (
            files.enter_context(TABLES[form](files.enter_context(whole(path)), columns))
            for path, columns in zip(paths, (TURNS, JOBS), strict=True)
        )
        for cell in cells:
            try:
                turns, jobs = rows_of(cell)
            except InvalidRunFolder as error:
                missing.append((cell.folder.name, str(error)))
                continue
            turns_table.append(turns)
            jobs_table.append(jobs)
    return paths, missing


def _files(cells: Sequence[Cell], form: str, out: Path) -> tuple[list[Path], Missing]:
    name, make = OF_A_CELL[form]
    paths, missing = [], []
    for cell in cells:
        try:
            content = make(cell)
        except InvalidRunFolder as error:
            missing.append((cell.folder.name, str(error)))
            continue
        path = out / cell.folder.name / name
        write_file(path, content)
        paths.append(path)
    return paths, missing
