"""Finds finished cells, in this run folder or in another one with the same settings.

In: cells of a plan. Out: which of them must be run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.cells.folder import aside_of, is_done, remove_aside, set_aside, write_json
from harness.console import print_message
from harness.load.settings import Keep
from harness.sweep.cell import Work
from harness.sweep.fingerprint import same_cell
from harness.sweep.plan import Cell
from reports.metrics.cell_numbers import has_current_numbers
from reports.metrics.cells import failed_gates_of
from reports.run_folder.find import RUNS, run_folders
from reports.run_folder.lines import RERUN
from reports.run_folder.read import CellRun, read_cell, read_config
from reports.run_folder.turns import has_turns
from servers.basics.atomic import sync
from servers.basics.errors import CannotWrite, InvalidRunFolder
from servers.basics.phrasing import counted, listed
from servers.records.cell import CellRecord

COPYING = ".aside-copy"
"""Suffix of an unfinished copy. Reports ignore such folders, and the finished cell removes it."""
TAKEN_FROM = "taken_from.json"


def unfinished(work: Work, cells: Sequence[Cell], reuse: bool) -> tuple[list[Cell], int]:
    """Return which of the cells must be run in a claimed folder, and how many were finished in it.
    A measurement that failed a validity gate is repeated; in virtual time it would fail again."""
    plan, folder = work.plan, work.folder
    live = not plan.engine.kind.is_virtual
    needs_turns = work.keep is Keep.TURNS
    finished = finished_names([cell.name for cell in cells], folder, needs_turns=needs_turns)
    todo = [cell for cell in cells if cell.name not in finished]
    invalid = [
        cell for cell in cells if live and cell not in todo and not is_valid(folder / cell.name)
    ]
    found_done = len(cells) - len(todo) - len(invalid)
    if invalid:
        print_message(
            f"runs {counted(len(invalid), 'invalid cell')} again; bench report {folder} writes the "
            "report without"
        )
    todo = [cell for cell in cells if cell in {*todo, *invalid}]
    if reuse and todo and plan.cells_reusable:
        taken = take_finished(
            {cell.name: plan.cell_record(cell) for cell in todo},
            folder,
            live=live,
            needs_turns=needs_turns,
        )
        work.taken += taken.values()
        todo = [cell for cell in todo if cell.name not in taken]
    for cell in set(cells).difference(todo):
        remove_aside(folder / cell.name)
    return todo, found_done


def is_finished(cell: Path, *, needs_turns: bool = False) -> bool:
    """Return whether a cell is finished and undamaged, and has its turns, or without
    `needs_turns` its numbers; name the damaged file on stderr."""
    undamaged = _read_undamaged(cell)
    return undamaged is not None and _suffices(undamaged, needs_turns)


def _read_undamaged(cell: Path) -> CellRun | None:
    if not is_done(cell):
        return None
    try:
        return read_cell(cell)
    except InvalidRunFolder as error:
        print_message(f"damaged: {str(error).removesuffix(f'; {RERUN}')}")
        return None


def _suffices(cell: CellRun, needs_turns: bool) -> bool:
    return has_turns(cell.folder) or (not needs_turns and has_current_numbers(cell))


def finished_names(names: Iterable[str], folder: Path, *, needs_turns: bool = False) -> set[str]:
    """Return which of the cells in a claimed folder are finished, and print what happens to the
    files of the others."""
    found, unfinished = set[str](), list[str]()
    for name in names:
        cell = folder / name
        if undamaged := _read_undamaged(cell):
            if _suffices(undamaged, needs_turns):
                found.add(name)
        elif is_done(cell):
            print_message(
                f"moves the damaged files of {name} to {aside_of(cell)}, which is removed once the "
                "cell has run again"
            )
        elif cell.exists():
            unfinished.append(name)
    if unfinished:
        print_message(
            f"moves the partial output of {listed(unfinished)} to *.aside-N; these cells run again"
        )
    return found


def is_valid(cell: Path) -> bool:
    """Return whether a finished cell passed all validity gates; say on stderr if it did not."""
    if not (failed := failed_gates_of(cell)):
        return True
    print_message(f"{cell} failed a validity gate: {failed}")
    return False


def take_finished(
    planned: Mapping[str, CellRecord],
    folder: Path,
    *,
    live: bool = False,
    needs_turns: bool = False,
) -> dict[str, Path]:
    """Copy cells that are finished elsewhere under `runs/` into `folder`, and return where each of
    them was found, by its name.

    `planned`: contents of `cell.json` by the cell's name. `live`: the cells are measurements, of
    which only valid ones are copied. `needs_turns`: not those that kept their numbers only."""
    taken: dict[str, Path] = {}
    for cell in _finished_elsewhere(planned, folder):
        if cell.name in taken or not is_finished(cell, needs_turns=needs_turns):
            continue
        if live and not is_valid(cell):
            continue
        set_aside(folder / cell.name)
        copy_cell(cell, folder / cell.name)
        taken[cell.name] = cell.parent
    return taken


def say_taken(works: Iterable[Work]) -> None:
    """Print how many cells were copied since the last call, if there are any."""
    taken = list[Path]()
    live = False
    for work in works:
        taken += work.taken
        work.taken.clear()
        live = not work.plan.engine.kind.is_virtual
    if taken:
        cells = counted(len(taken), "finished cell")
        again = "; --fresh measures them again" if live else ""
        sources = listed(sorted({*map(str, taken)}))
        print_message(f"took {cells} with the same settings from {sources}{again}")


def _finished_elsewhere(planned: Mapping[str, CellRecord], folder: Path) -> Iterator[Path]:
    for run in run_folders(RUNS):
        if run.resolve() == folder.resolve():
            continue
        for cell in filter(is_done, (run / name for name in sorted(planned))):
            with suppress(InvalidRunFolder):  # A damaged cell is not finished.
                if same_cell(read_config(cell), planned[cell.name]):
                    yield cell


def copy_cell(cell: Path, target: Path) -> None:
    """Copy a finished cell to `target`; its `taken_from.json` names the original. Files are hard
    links where the file system allows, since nothing writes into a finished cell."""
    with complete_folder(target) as copying:
        shutil.copytree(cell, copying, symlinks=True, copy_function=_link)
        if not (copying / TAKEN_FROM).exists():
            write_json(copying / TAKEN_FROM, {"cell": str(cell)})


@contextmanager
def complete_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a folder to make, which becomes `target` completely or not at all."""
    copying = target.with_name(target.name + COPYING)
    try:
        shutil.rmtree(copying, ignore_errors=True)
        yield copying
        os.rename(copying, target)
        sync(target.parent)
    except OSError as error:
        raise CannotWrite.of(target, error) from None
    finally:
        shutil.rmtree(copying, ignore_errors=True)


def _link(source: str, target: str) -> None:
    """Link or copy a file. Raises CannotWrite at the first error, of which `copytree` would make a
    list with those of all files."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        try:
            shutil.copy2(source, target, follow_symlinks=False)
        except OSError as error:
            raise CannotWrite.of(Path(target), error) from None
