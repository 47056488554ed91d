"""Exports the finished cells of a run folder, or some of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from reports.exports.chrome import chrome_trace
from reports.exports.tables import JOBS, TURNS, Opens, open_csv, open_parquet, rows_of
from reports.metrics.steady import unstable_cells
from reports.run_folder.members import has_members, read_members
from reports.run_folder.read import CellRun, load_run, refuse_unknown
from reports.run_folder.turns import kept_turns
from servers.basics.atomic import atomic_path, write_file
from servers.basics.errors import InvalidRunFolder

TABLES: dict[str, Opens] = {"csv": open_csv, "parquet": open_parquet}

Missing = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Exported:
    paths: tuple[Path, ...]
    cells: int
    missing: tuple[tuple[str, str], ...]
    """Names of cells that were not exported, and the reasons."""
    without_turns: tuple[str, ...] = ()
    """Names of cells that were not exported, because their turns were not kept."""


def export(run_folder: Path, form: str, out: Path, names: Sequence[str] = ()) -> Exported:
    """Export the cells with these names, or all finished cells, as tables or as "chrome". Raises
    InvalidInput."""
    cells, not_finished, unstable = _cells(run_folder)
    if names:
        refuse_unknown("--cell", names, [*cells, *(name for name, _ in not_finished)], run_folder)
        cells = {name: cell for name, cell in cells.items() if name in names}
        not_finished = [(name, why) for name, why in not_finished if name in names]
    without_turns = tuple(name for name, cell in cells.items() if not kept_turns(cell))
    cells = {name: cell for name, cell in cells.items() if name not in without_turns}
    if form in TABLES:
        paths, missing = _tables(cells, form, out, unstable)
    else:
        paths, missing = _traces(cells, out)
    exported = len(cells) - len(missing)
    return Exported(tuple(paths), exported, (*not_finished, *missing), without_turns)


def _cells(run_folder: Path) -> tuple[dict[str, CellRun], Missing, set[str]]:
    """Return the finished cells by name, the names of the others with the reasons, and the names of
    unstable ones. With several machines, a name begins with the run folder of the machine."""
    if not has_members(run_folder):
        run = load_run(run_folder)
        cells = {cell.folder.name: cell for cell in run.cells}
        return cells, list(run.missing), set(unstable_cells(run.cells))
    cells, missing, unstable = {}, [], set()
    for member in read_members(run_folder):
        run, machine = load_run(member.folder), member.folder.name
        cells |= {f"{machine}/{cell.folder.name}": cell for cell in run.cells}
        missing += [(f"{machine}/{name}", why) for name, why in run.missing]
        unstable |= {f"{machine}/{name}" for name in unstable_cells(run.cells)}
    return cells, missing, unstable


def _tables(
    cells: Mapping[str, CellRun], form: str, out: Path, unstable: Collection[str]
) -> tuple[list[Path], Missing]:
    missing: Missing = []
    paths = [out / f"{what}.{form}" for what in ("turns", "jobs")]
    with ExitStack() as files:
        turns_table, jobs_table = (
            files.enter_context(TABLES[form](files.enter_context(atomic_path(path)), columns))
            for path, columns in zip(paths, (TURNS, JOBS), strict=True)
        )
        for name, cell in cells.items():
            try:
                turns, jobs = rows_of(cell, name, name in unstable)
            except InvalidRunFolder as error:
                missing.append((name, str(error)))
                continue
            turns_table.append(turns)
            jobs_table.append(jobs)
    return paths, missing


def _traces(cells: Mapping[str, CellRun], out: Path) -> tuple[list[Path], Missing]:
    paths, missing = [], []
    for name, cell in cells.items():
        try:
            content = chrome_trace(cell)
        except InvalidRunFolder as error:
            missing.append((name, str(error)))
            continue
        path = out / name / "trace.json"
        write_file(path, content)
        paths.append(path)
    return paths, missing
