"""Runs several sweeps in one pool of worker processes, each with its own run folder.

In: plans by the name of their folder. Out: the run folders, in a common folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.cells.workers import Tick
from harness.load.shard import Shard
from harness.sweep.cell import Work, run_cell
from harness.sweep.folder import claimed, settings_files
from harness.sweep.plan import Cell, SweepPlan
from harness.sweep.run import Outcome, RunJobs, core_for, run_cells, search_of, unfinished
from harness.sweep.search import CapacitySearch, refuse_unreachable
from harness.sweep.shards import cells_of_shard, count_missing
from servers.basics.compiled_core import offered_to_workers
from servers.basics.errors import InvalidInput
from servers.records.done import Jct


@dataclass(frozen=True, slots=True)
class CellOfSweep:
    sweep: str
    """Name of the run folder."""
    cell: Cell

    @property
    def name(self) -> str:
        return f"{self.sweep}/{self.cell.name}"


def run_several(
    plans: Mapping[str, SweepPlan],
    folder: Path,
    *,
    workers: int,
    stop_on_error: bool = False,
    reuse: bool = True,
    on_begin: Callable[[], None] = lambda: None,
    claim: AbstractContextManager[None] | None = None,
    shard: Shard | None = None,
    pool: RunJobs | None = None,
) -> Outcome:
    """Run the cells of all plans, or those of a shard. `on_begin` is called after all folders
    passed their checks. `claim` claims the common folder, and is entered when the plans have passed
    theirs."""
    todo: list[CellOfSweep] = []
    cells = found_done = 0
    idle = {name: _refused_by_name(name, plan, folder) for name, plan in plans.items()}
    given = cells_of_shard(plans, shard)
    with claim or nullcontext(), ExitStack() as claims:
        for name, plan in plans.items():
            files = settings_files(plan.settings)
            claims.enter_context(claimed(folder / name, plan.sweep_record(), files, shard=shard))
        on_begin()
        for name, plan in plans.items():
            unfinished_here, done_here = unfinished(plan, given[name], folder / name, reuse)
            todo += [CellOfSweep(name, cell) for cell in unfinished_here]
            cells, found_done = cells + len(given[name]), found_done + done_here
        searches = {
            name: search
            for name, plan in plans.items()
            if (search := search_of(plan, folder / name, idle[name], reuse)) is not None
        }
        work = {
            name: Work(plan, folder / name, dict(searches[name].idle) if name in searches else {})
            for name, plan in plans.items()
        }
        first, more = next(iter(plans.values())), partial(_next_cells, searches)
        workers = workers if first.engine.kind.is_virtual or pool is not None else 1
        with offered_to_workers(core_for(first.engine)):
            failed = run_cells(
                todo,
                _run_one,
                work,
                folder,
                first.turns_per_cell,
                workers,
                stop_on_error,
                more,
                found=partial(_found, searches) if searches else None,
                pool=pool,
            )
    cells += sum(search.cells for search in searches.values())
    found_done += sum(search.found_done for search in searches.values())
    folders = {folder / name: plan for name, plan in plans.items()}
    missing = 0 if shard is None else count_missing(folders)
    return Outcome(folder, cells, found_done, failed, missing)


def _refused_by_name(name: str, plan: SweepPlan, folder: Path) -> dict[int, Jct]:
    """Refuse an SLO that an idle machine does not meet with the name of its sweep."""
    try:
        return refuse_unreachable(plan, folder / name)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


def _next_cells(
    searches: Mapping[str, CapacitySearch], failed: Mapping[str, str]
) -> list[CellOfSweep]:
    cells: list[CellOfSweep] = []
    for sweep, search in searches.items():
        prefix = f"{sweep}/"
        here = {n.removeprefix(prefix): why for n, why in failed.items() if n.startswith(prefix)}
        cells += [CellOfSweep(sweep, cell) for cell in search.next_cells(here)]
    return cells


def _found(searches: Mapping[str, CapacitySearch]) -> tuple[int, int]:
    found = [search.found() for search in searches.values()]
    return sum(ended for ended, _ in found), sum(capacities for _, capacities in found)


def _run_one(work: Mapping[str, Work], cell: CellOfSweep, tick: Tick) -> None:
    run_cell(work[cell.sweep], cell.cell, tick)
