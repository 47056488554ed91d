"""Runs each cell of a plan once, in worker processes, and resumes an interrupted run folder.

In: a plan and a folder. Out: the run folder, and which cells failed. The number of workers affects
only the duration, not the results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.cells.folder import mark_failed, remove_aside
from harness.cells.workers import Ended, Event, Started, Tick, Ticked, run_jobs
from harness.console import print_message
from harness.engines.base import Engine
from harness.load.shard import Shard
from harness.sweep.cell import Work, run_cell
from harness.sweep.finished import finished_names, is_valid, take_finished
from harness.sweep.folder import claimed, settings_files
from harness.sweep.plan import Cell, SweepPlan
from harness.sweep.progress import SweepProgress
from harness.sweep.search import CapacitySearch, refuse_unreachable
from harness.sweep.shards import cells_of_shard, count_missing
from servers.basics.checkout import REINSTALL, make_or
from servers.basics.compiled_core import SOURCES_ONLY, Core, find_core, offered_to_workers
from servers.basics.phrasing import counted
from servers.records.done import Jct

RunJobs = Callable[
    [
        Sequence[Any],
        Callable[[Any, Any, Tick], None],
        Any,
        int,
        Callable[[], Sequence[Any]],
    ],
    Generator[Event[Any], None, None],
]
"""Like `harness.cells.workers.run_jobs`."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    folder: Path
    cells: int
    found_done: int
    """Number of cells that an earlier run finished in this folder."""
    failed: Mapping[str, str]
    """Cell name → error."""
    missing: int = 0
    """Number of cells of the whole sweep that have no result, if a shard was run."""


def run_sweep(
    plan: SweepPlan,
    folder: Path,
    *,
    workers: int,
    stop_on_error: bool = False,
    reuse: bool = True,
    run: Callable[[Work, Cell, Tick], None] = run_cell,
    on_begin: Callable[[], None] = lambda: None,
    shard: Shard | None = None,
    pool: RunJobs | None = None,
) -> Outcome:
    """`on_begin` is called after the plan and its folder have passed all checks. With `reuse`,
    cells that are finished elsewhere under `runs/` with the same settings are copied; pass False to
    repeat a measurement. With a shard, only its cells are run. `pool` runs cells elsewhere than in
    worker processes of this machine."""
    idle = refuse_unreachable(plan, folder)
    (given,) = cells_of_shard({"": plan}, shard).values()
    with claimed(folder, plan.sweep_record(), settings_files(plan.settings), shard=shard):
        on_begin()
        search = search_of(plan, folder, idle, reuse)
        todo, found_done = unfinished(plan, given, folder, reuse)
        if pool is None and not plan.engine.kind.is_virtual:
            workers = 1
        work = Work(plan, folder, dict(search.idle) if search else {})
        turns, more = plan.turns_per_cell, search.next_cells if search else no_more
        so_far = search.so_far if search else str
        with offered_to_workers(core_for(plan.engine)):
            failed = run_cells(
                todo,
                run,
                work,
                folder,
                turns,
                workers,
                stop_on_error,
                more,
                so_far,
                search.found if search else None,
                pool,
            )
    cells, before = (search.cells, search.found_done) if search else (0, 0)
    missing = 0 if shard is None else count_missing({folder: plan})
    return Outcome(folder, len(given) + cells, found_done + before, failed, missing)


def search_of(
    plan: SweepPlan, folder: Path, idle: Mapping[int, Jct], reuse: bool
) -> CapacitySearch | None:
    """Return the search for capacities in a claimed folder; None if the plan has none. `idle` is
    what `refuse_unreachable` returned."""
    return None if plan.slo is None else CapacitySearch(plan, plan.slo, folder, idle, reuse=reuse)


def no_more(_: Mapping[str, str]) -> Sequence[Any]:
    return ()


def unfinished(
    plan: SweepPlan, cells: Sequence[Cell], folder: Path, reuse: bool
) -> tuple[list[Cell], int]:
    """Return which of the cells must be run in a claimed folder, and how many were finished in it.
    A measurement that failed a validity gate is repeated; in virtual time it would fail again."""
    live = not plan.engine.kind.is_virtual
    finished = finished_names([cell.name for cell in cells], folder)
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
            {cell.name: plan.cell_record(cell) for cell in todo}, folder, live=live
        )
        todo = [cell for cell in todo if cell.name not in taken]
    for cell in set(cells).difference(todo):
        remove_aside(folder / cell.name)
    return todo, found_done


def core_for(engine: Engine) -> Core:
    """Return the core that simulates cells of this engine, and print a notice if there is a
    compiled one that cannot be used."""
    if not engine.kind.has_compiled_core:
        return SOURCES_ONLY
    core = find_core()
    if core.is_outdated:
        print_message(
            f"cells run in Python, which takes three times as long: the compiled core is "
            f"{core.finding}; run {make_or('compile', REINSTALL)}"
        )
    return core


def run_cells(
    todo: Sequence[Named],
    run: Callable[[Any, Any, Tick], None],
    work: Any,
    folder: Path,
    turns_per_cell: int,
    workers: int,
    stop_on_error: bool,
    more: Callable[[Mapping[str, str]], Sequence[Named]] = no_more,
    so_far: Callable[[], str] = str,
    found: Callable[[], tuple[int, int]] | None = None,
    pool: RunJobs | None = None,
) -> dict[str, str]:
    """Call `run(work, cell, tick)` for each cell in a worker process, or in the pool. Return errors
    by the name of the cell, which is the path of its folder in `folder`. `more` gets these errors
    while a worker is idle, and returns further cells. `so_far` returns an interim answer, or an
    empty text. `found` returns how many capacities a search has found, and how many there are."""
    failed: dict[str, str] = {}
    todo = todo or more(failed)
    if not todo:
        return failed
    progress = SweepProgress(len(todo), turns_per_cell, workers, found)

    def further() -> Sequence[Named]:
        cells = more(failed)
        progress.planned(len(cells))
        return cells

    with progress, closing((pool or run_jobs)(todo, run, work, workers, further)) as events:
        for event in events:
            name = event.job.name
            if isinstance(event, Started):
                progress.started(name)
            elif isinstance(event, Ticked):
                progress.ticked(name, event.amount, event.stage)
            elif isinstance(event, Ended):
                if event.error is not None:
                    failed[name] = event.error
                    mark_failed(folder / name, event.error)
                progress.finished(name, event.error)
                progress.answer(so_far)
                if failed and stop_on_error:
                    break
    return failed
