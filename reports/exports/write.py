"""Exports the finished cells of a run folder, or some of them."""

from __future__ import annotations

from collections.abc import Sequence
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
    cells, missing, unstable = _cells(run_folder)
    if names:
        refuse_unknown("--cell", names, [*cells, *dict(missing)], run_folder)
        cells = {name: cell for name, cell in cells.items() if name in names}
        missing = [(name, why) for name, why in missing if name in names]
    without_turns = tuple(name for name, cell in cells.items() if not kept_turns(cell))
    tables = {out / f"turns.{form}": TURNS, out / f"jobs.{form}": JOBS} if form in TABLES else {}
    paths, exported = list(tables), 0
    with ExitStack() as files:
        opened = [
            files.enter_context(TABLES[form](files.enter_context(atomic_path(path)), columns))
            for path, columns in tables.items()
        ]
        for name, cell in cells.items():
            if name in without_turns:
                continue
            try:
                if tables:
                    rows = rows_of(cell, name, name in unstable)
                    for append, own in zip(opened, rows, strict=True):
                        append(own)
                else:
                    content = chrome_trace(cell)
                    write_file(out / name / "trace.json", content)
                    paths.append(out / name / "trace.json")
                exported += 1
            except InvalidRunFolder as error:
                missing.append((name, str(error)))
    return Exported(tuple(paths), exported, tuple(missing), without_turns)


def _cells(run_folder: Path) -> tuple[dict[str, CellRun], list[tuple[str, str]], set[str]]:
    """Return the finished cells by name, the names of the others with the reasons, and the names of
    unstable ones. With several machines, a name begins with the run folder of the machine."""
    folders = {run_folder: ""}
    if has_members(run_folder):
        folders = {each.folder: f"{each.folder.name}/" for each in read_members(run_folder)}
    cells: dict[str, CellRun] = {}
    missing: list[tuple[str, str]] = []
    unstable: set[str] = set()
    for folder, machine in folders.items():
        run = load_run(folder)
        cells |= {f"{machine}{cell.folder.name}": cell for cell in run.cells}
        missing += [(f"{machine}{name}", why) for name, why in run.missing]
        unstable |= {f"{machine}{name}" for name in unstable_cells(run.cells)}
    return cells, missing, unstable
