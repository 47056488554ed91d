"""Exports the finished cells of a run folder, or some of them, in one format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from reports.exports.chrome import chrome_trace
from reports.exports.tables import JOBS, TURNS, Opens, open_csv, open_parquet, rows_of
from reports.exports.timestamps import scheduler_timestamps
from reports.run_folder.atomic import atomic_path, write_file
from reports.run_folder.cell_names import refuse_unknown
from reports.run_folder.read import Cell, load_run
from servers.errors import InvalidRunFolder

TABLES: dict[str, Opens] = {"csv": open_csv, "parquet": open_parquet}
CELL_FORMATS: dict[str, tuple[str, Callable[[Cell], bytes]]] = {
    "timestamps": ("scheduler_timestamps", scheduler_timestamps),
    "chrome": ("trace.json", chrome_trace),
}
"""Name of the file in the cell's folder and function that returns its content, by format.
`scheduler_timestamps` is the name that Continuum's fork uses."""
FORMATS = (*TABLES, *CELL_FORMATS)

Missing = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Exported:
    paths: tuple[Path, ...]
    cells: int
    missing: tuple[tuple[str, str], ...]
    """Names of cells that were not exported, and the reasons."""


def export(run_folder: Path, form: str, out: Path, names: Sequence[str] = ()) -> Exported:
    """Export the cells with these names, or all finished cells. Raises UnknownCell."""
    run = load_run(run_folder)
    cells, not_finished = run.cells, run.missing
    if names:
        known = [*(cell.folder.name for cell in cells), *(name for name, _ in not_finished)]
        refuse_unknown("--cell", names, known, run_folder)
        cells = tuple(cell for cell in cells if cell.folder.name in names)
        not_finished = tuple((name, why) for name, why in not_finished if name in names)
    write = _tables if form in TABLES else _files
    paths, missing = write(cells, form, out)
    return Exported(tuple(paths), len(cells) - len(missing), (*not_finished, *missing))


def _tables(cells: Sequence[Cell], form: str, out: Path) -> tuple[list[Path], Missing]:
    missing: Missing = []
    paths = [out / f"{what}.{form}" for what in ("turns", "jobs")]
    with ExitStack() as files:
        turns_table, jobs_table = (
            files.enter_context(TABLES[form](files.enter_context(atomic_path(path)), columns))
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
    name, make = CELL_FORMATS[form]
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
