"""Finished cells, here or in another run folder with the same settings.

In: the contents of `cell.json` that a plan wants. Out: which cells need not be run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.cells.folder import is_done, read_json, set_aside, write_json
from harness.console import complain
from harness.sweep.deciding import same_cell
from reports.phrasing import counted, listed
from reports.run_folder.atomic import sync
from servers.errors import CannotWrite, InvalidInput, InvalidRunFolder

RUNS = Path("runs")
COPYING = ".aside-copy"
"""Suffix of an unfinished copy: no report reads such a folder, and the finished cell removes it."""
TAKEN_FROM = "taken_from.json"


def is_finished(cell: Path) -> bool:
    """A cell that no report can read is not finished; a line on stderr says why."""
    if not is_done(cell):
        return False
    from reports.run_folder.lines import RERUN  # takes a second
    from reports.run_folder.read import check_finished

    try:
        check_finished(cell)
    except InvalidRunFolder as error:
        complain(f"damaged: {str(error).removesuffix(f'; {RERUN}')}")
        return False
    return True


def take_finished(
    wanted: Mapping[str, Mapping[str, Any]], folder: Path, runs: Path = RUNS
) -> set[str]:
    """Copies cells that are finished elsewhere under `runs` into `folder` and returns their names.
    `wanted` holds the contents of `cell.json` by name."""
    taken: dict[str, Path] = {}
    for cell in _finished_elsewhere(wanted, folder, runs):
        if cell.name in taken or not is_finished(cell):
            continue
        set_aside(folder / cell.name)
        copy_cell(cell, folder / cell.name)
        taken[cell.name] = cell.parent
    if taken:
        cells = counted(len(taken), "finished cell")
        sources = listed(sorted({str(source) for source in taken.values()}))
        complain(f"took {cells} with the same settings from {sources}")
    return set(taken)


def _finished_elsewhere(
    wanted: Mapping[str, Mapping[str, Any]], folder: Path, runs: Path
) -> Iterator[Path]:
    for run, subfolders, files in os.walk(runs):
        cells = [Path(run) / name for name in sorted(wanted.keys() & set(subfolders))]
        subfolders.sort()
        if "sweep.json" not in files:
            continue
        subfolders.clear()
        if Path(run).resolve() == folder.resolve():
            continue
        for cell in filter(is_done, cells):
            with suppress(OSError, InvalidInput):  # damaged: not finished
                if same_cell(read_json(cell / "cell.json"), wanted[cell.name]):
                    yield cell


def copy_cell(cell: Path, target: Path) -> None:
    """Makes `target` a copy of a finished cell, complete or not at all, whose `taken_from.json`
    names the original. Files are linked where the file system allows, since nothing writes into a
    finished cell."""
    copying = target.with_name(target.name + COPYING)
    try:
        shutil.rmtree(copying, ignore_errors=True)
        shutil.copytree(cell, copying, symlinks=True, copy_function=_link)
        if not (copying / TAKEN_FROM).exists():
            write_json(copying / TAKEN_FROM, {"cell": str(cell)})
        os.rename(copying, target)
        sync(target.parent)
    except OSError as error:
        shutil.rmtree(copying, ignore_errors=True)
        raise CannotWrite.of(target, error) from None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
