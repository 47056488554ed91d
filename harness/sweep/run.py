"""Runs every cell of a plan once, in worker processes, into one run folder that resumes.

In: a plan and a folder. Out: the filled folder, and which cells failed. The number of workers
changes how long it takes, and no byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from harness.cells.folder import is_done, mark_failed, remove_aside, set_aside
from harness.cells.workers import Ended, Started, Tick, Ticked, run_jobs
from harness.console import complain
from harness.sweep.cell import Work, run_cell
from harness.sweep.deciding import copy_cell, finished_elsewhere
from harness.sweep.folder import claimed, note_reused
from harness.sweep.plan import Cell, SweepPlan
from harness.sweep.progress import SweepProgress
from reports.phrasing import counted, listed


@dataclass(frozen=True, slots=True)
class Outcome:
    folder: Path
    cells: int
    found_done: int
    """Finished by an earlier run, here or elsewhere under `runs/`."""
    failed: Mapping[str, str]
    """Cell name → error."""


def run_sweep(
    plan: SweepPlan,
    folder: Path,
    *,
    workers: int,
    stop_on_error: bool = False,
    reuse: bool = True,
    run: Callable[[Work, Cell, Tick], None] = run_cell,
    on_begin: Callable[[], None] = lambda: None,
) -> Outcome:
    """`on_begin` is called once the plan and its folder are known to be usable. With `reuse`, cells
    of the same settings that are finished elsewhere under `runs/` are taken from there, which a
    repeat of a measurement must not do."""
    with claimed(folder, plan):
        on_begin()
        cells = plan.cells()
        todo = [cell for cell in cells if not _is_finished(folder / cell.name)]
        if again := [cell.name for cell in todo if (folder / cell.name).exists()]:
            complain(f"set aside what an earlier run left of {listed(again)}, to run again")
        if reuse and todo and plan.engine.settings_decide:
            reused = _reuse(todo, plan, folder)
            todo = [cell for cell in todo if cell.name not in reused]
        for cell in set(cells).difference(todo):
            remove_aside(folder / cell.name)
        failed: dict[str, str] = {}
        if todo:
            failed = _run_cells(todo, Work(plan, folder), workers, stop_on_error, run)
    return Outcome(folder, len(cells), len(cells) - len(todo), failed)


def _reuse(todo: Sequence[Cell], plan: SweepPlan, folder: Path) -> Mapping[str, Path]:
    """Copies finished cells of the same settings into the folder; `sweep.json` says from where."""
    wanted = {cell.name: plan.cell_json(cell) for cell in todo}
    found = finished_elsewhere(wanted, folder)
    found = {name: cell for name, cell in found.items() if _is_finished(cell)}
    for name, cell in found.items():
        set_aside(folder / name)
        copy_cell(cell, folder / name)
    if found:
        note_reused(folder, found)
        sources = sorted({str(cell.parent) for cell in found.values()})
        cells = counted(len(found), "finished cell")
        complain(f"took {cells} with the same settings from {listed(sources)}")
    return found


def _is_finished(cell: Path) -> bool:
    """A cell that no report can read is not finished; a line on stderr says why."""
    if not is_done(cell):
        return False
    from reports.run_folder.lines import RERUN
    from reports.run_folder.read import check_finished
    from servers.errors import InvalidRunFolder

    try:
        check_finished(cell)
    except InvalidRunFolder as error:
        complain(f"damaged: {str(error).removesuffix(f'; {RERUN}')}")
        return False
    return True


def _run_cells(
    todo: list[Cell],
    work: Work,
    workers: int,
    stop_on_error: bool,
    run: Callable[[Work, Cell, Tick], None],
) -> dict[str, str]:
    failed: dict[str, str] = {}
    if not work.plan.engine.side_by_side:
        workers = 1
    progress = SweepProgress(len(todo), work.plan.workload.turns, min(workers, len(todo)))
    with progress, closing(run_jobs(todo, run, work, workers)) as events:
        for event in events:
            name = event.job.name
            if isinstance(event, Started):
                progress.started(name)
            elif isinstance(event, Ticked):
                progress.ticked(name, event.amount, event.stage)
            elif isinstance(event, Ended):
                if event.error is not None:
                    failed[name] = event.error
                    mark_failed(work.folder / name, event.error)
                progress.finished(name, event.error)
                if failed and stop_on_error:
                    break
    return failed
