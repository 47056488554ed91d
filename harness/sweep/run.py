"""Runs each cell of one or several plans once, in worker processes, and resumes run folders.

In: plans by the name of their run folder, and the folder that contains these. Out: the run folders,
and which cells failed. The number of workers affects only the duration, not the results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from harness.cells.folder import mark_failed
from harness.cells.locks import parse_shard
from harness.cells.workers import Ended, Event, Started, Tick, Ticked, run_jobs
from harness.console import print_message
from harness.engines.base import ResolvedEngine
from harness.load.settings import Execution, Keep, OnError
from harness.sweep.cell import PlannedCell, RunCell, Work, run_cell, run_planned
from harness.sweep.finished import say_taken, unfinished
from harness.sweep.folder import claimed, settings_files
from harness.sweep.plan import SweepPlan
from harness.sweep.progress import SweepProgress
from harness.sweep.search import CapacitySearch, refuse_unreachable
from harness.sweep.shards import cells_of_shard, count_missing
from servers.basics.checkout import REINSTALL, make_or
from servers.basics.compiled_core import SOURCES_ONLY, Core, find_core, offered_to_workers
from servers.basics.cores import cpu_cores
from servers.basics.errors import InvalidInput


class SloNotReached(InvalidInput):
    """Not even an idle machine meets the SLO."""


class Pool(Protocol):
    """Runs cells elsewhere than in worker processes of this machine."""

    def slots(self) -> int:
        """Return how many cells can run at a time."""

    def run_jobs(
        self,
        jobs: Sequence[Any],
        run: Callable[[Any, Any, Tick], None],
        shared: Any,
        workers: int,
        more: Callable[[], Sequence[Any]],
    ) -> Generator[Event[Any], None, None]:
        """Like `harness.cells.workers.run_jobs`."""


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    folder: Path
    cells: int
    found_done: int
    """Number of cells that an earlier run finished in this folder."""
    failed: Mapping[str, str]
    """Cell name → error."""
    missing: int = 0
    """Number of cells of the whole sweep that have no result, if a shard was run."""


def run_sweeps(
    plans: Mapping[str, SweepPlan],
    folder: Path,
    execution: Execution,
    *,
    arguments: Sequence[str] = (),
    on_begin: Callable[[], None] = lambda: None,
    claim: AbstractContextManager[None] | None = None,
    pool: Pool | None = None,
    run: RunCell = run_cell,
) -> SweepOutcome:
    """Run the cells of all plans, or of a shard. A single plan is named `ONE`.

    `arguments` of the command are recorded. `on_begin` is called after the plans and folders have
    passed all checks. `claim` claims the common folder, and is entered when the plans have passed
    theirs. Unless the execution is `fresh`, cells that are finished elsewhere under `runs/` with
    the same settings are copied.
    """
    reuse = not execution.fresh
    shard = None if execution.shard is None else parse_shard(execution.shard)
    work = {name: _work(name, plan, folder, execution.keep) for name, plan in plans.items()}
    given = cells_of_shard(plans, shard)
    todo: list[PlannedCell] = []
    found_done = 0
    with claim or nullcontext(), ExitStack() as claims:
        for own in work.values():
            files, record = settings_files(own.plan.settings), own.plan.sweep_record()
            claims.enter_context(
                claimed(own.folder, record, files, arguments=arguments, shard=shard)
            )
        on_begin()
        for name, own in work.items():
            cells, done = unfinished(own, given[name], reuse)
            todo += [PlannedCell(name, cell) for cell in cells]
            found_done += done
        say_taken(work.values())
        searches = [
            CapacitySearch(name, own, slo, reuse)
            for name, own in work.items()
            if (slo := own.plan.slo) is not None
        ]
        failed = run_cells(todo, run, work, folder, execution, searches, pool)
        say_taken(work.values())  # by the searches
    count = sum(map(len, given.values())) + sum(search.cells for search in searches)
    found_done += sum(search.found_done for search in searches)
    missing = 0 if shard is None else count_missing(work.values())
    return SweepOutcome(folder, count, found_done, failed, missing)


def _work(name: str, plan: SweepPlan, folder: Path, keep: Keep | None) -> Work:
    """Raise SloNotReached, with the name of the plan, if not even an idle machine meets its SLO."""
    try:
        idle = refuse_unreachable(plan, folder / name)
    except InvalidInput as error:
        raise SloNotReached(f"{name}: {error}" if name else str(error)) from None
    keep = keep or (Keep.TURNS if plan.slo is None else Keep.SHOWN)
    return Work(plan, folder / name, idle, keep)


def core_for(engine: ResolvedEngine) -> Core:
    """Return the core that simulates cells of this engine, and print a notice if there is a
    compiled one that cannot be used."""
    if not engine.kind.has_compiled_core:
        return SOURCES_ONLY
    core = find_core()
    if core.is_outdated:
        _say_outdated(core.finding)
    return core


@cache
def _say_outdated(finding: str) -> None:
    """Print it once, though a plan runs many sweeps."""
    print_message(
        f"cells run in Python, which takes four times as long: the compiled core is {finding};"
        f" run {make_or('compile', REINSTALL)}"
    )


def run_cells(
    todo: Sequence[PlannedCell],
    run: RunCell,
    work: Mapping[str, Work],
    folder: Path,
    execution: Execution,
    searches: Sequence[CapacitySearch] = (),
    pool: Pool | None = None,
) -> dict[str, str]:
    """Return the errors of failed cells by `PlannedCell.name`. `searches` add cells."""
    failed: dict[str, str] = {}
    plan = next(iter(work.values())).plan
    workers = (execution.workers or cpu_cores()) if plan.engine.kind.is_virtual else 1
    if pool is not None:
        workers = pool.slots()
    core = core_for(plan.engine)

    def next_cells() -> list[PlannedCell]:
        return [cell for search in searches for cell in search.next_cells(failed, workers)]

    if not (todo := todo or next_cells()):
        return failed
    found = partial(_found, searches) if searches else None
    progress = SweepProgress(len(todo), plan.turns_per_cell, workers, found)

    def more() -> Sequence[PlannedCell]:
        cells = next_cells()
        progress.planned(len(cells))
        return cells

    jobs = (pool.run_jobs if pool else run_jobs)(
        todo, partial(run_planned, run), work, workers, more
    )
    with offered_to_workers(core), progress, closing(jobs) as events:
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
                if len(searches) == 1:
                    progress.answer(searches[0].so_far)
                if failed and execution.on_error is OnError.STOP:
                    break
    return failed


def _found(searches: Iterable[CapacitySearch]) -> tuple[int, int]:
    """Return how many capacities have been found, and how many there are."""
    found = [search.found() for search in searches]
    return sum(ended for ended, _ in found), sum(capacities for _, capacities in found)
