"""A sweep on several machines: one run folder for each machine, in a common folder.

In: settings with a list in --hardware or --model. Out: a folder that contains a run folder for each
machine, `machines.json`, which names them, and `sweep.toml`, which repeats all. The run folders are
like those of sweeps on one machine, so their cells are reused in both directions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from harness.cells.names import slug
from harness.cells.workers import Tick
from harness.load.machines import each_machine
from harness.load.option import elements
from harness.load.settings import Machine, SweepSettings
from harness.load.settings_file import settings_toml
from harness.sweep.cell import Work, run_cell
from harness.sweep.folder import SETTINGS, claimed, settings_files, with_copies
from harness.sweep.plan import Cell, SweepPlan, resolve_each
from harness.sweep.run import Outcome, core_for, run_cells, search_of, unfinished
from harness.sweep.search import CapacitySearch
from reports.run_folder.find import RUNS
from reports.run_folder.machines import FORMAT, MACHINES
from servers.compiled_core import offered_to_workers
from servers.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class MachinesPlan:
    settings: SweepSettings
    plans: Mapping[str, SweepPlan]
    """By name of the run folder."""

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "machines": [
                {
                    "folder": name,
                    "hardware": plan.engine.hardware,
                    "model": plan.engine.model,
                    "gpus": plan.engine.sweep_json().get("gpus"),
                }
                for name, plan in self.plans.items()
            ],
        }

    def default_folder(self) -> Path:
        """Return a readable name that ends with a hash of the plans."""
        plans = [plan.as_json() for plan in self.plans.values()]
        digest = hashlib.sha256(orjson.dumps(plans)).hexdigest()[:8]
        workload = next(iter(self.plans.values())).workload.name
        return RUNS / f"{slug(workload)}_{len(plans)}-machines_{digest}"

    def settings_files(self) -> dict[str, bytes]:
        """Return the contents of `sweep.toml`, which names copies of files in the run folders."""
        machine = self.settings.machine
        copies: dict[str, str] = {}
        for folder, plan in self.plans.items():
            one = plan.settings.machine
            copied = with_copies(plan.settings)[0].machine
            for name, copy in ((one.hardware, copied.hardware), (one.model, copied.model)):
                if name is not None and copy != name:
                    copies.setdefault(name, f"{folder}/{copy}")

        def listed(text: str | None) -> str | None:
            return ",".join(copies.get(name, name) for name in elements(text)) or None

        machine = replace(machine, hardware=listed(machine.hardware), model=listed(machine.model))
        return {SETTINGS: settings_toml(replace(self.settings, machine=machine))}


@dataclass(frozen=True, slots=True)
class CellOnMachine:
    machine: str
    """Name of the run folder."""
    cell: Cell

    @property
    def name(self) -> str:
        return f"{self.machine}/{self.cell.name}"


def resolve_machines(settings: SweepSettings) -> MachinesPlan:
    plans: dict[str, SweepPlan] = {}
    for plan in resolve_each(each_machine(settings)):
        name = f"{slug(plan.engine.hardware)}_{slug(plan.engine.model)}"
        if name in plans:
            raise _same_folder(plans[name].settings.machine, plan.settings.machine, name)
        plans[name] = plan
    return MachinesPlan(settings, plans)


def _same_folder(one: Machine, other: Machine, folder: str) -> InvalidInput:
    """Return the error for two machines with the same names of GPU and model."""
    if one.hardware == other.hardware:
        return InvalidInput(
            f"--model {one.model},{other.model}: both have the same folder, {folder}; rename one "
            "of the models' files or folders"
        )
    return InvalidInput(
        f"--hardware {one.hardware},{other.hardware}: both have the same folder, {folder}; give "
        "the GPU in one of the files another name"
    )


def run_machines(
    machines: MachinesPlan,
    folder: Path,
    *,
    workers: int,
    stop_on_error: bool = False,
    reuse: bool = True,
    on_begin: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run the cells of all machines. `on_begin` is called after all folders passed their checks."""
    plans = machines.plans
    todo: list[CellOnMachine] = []
    cells = found_done = 0
    with ExitStack() as claims:
        claims.enter_context(
            claimed(folder, machines.as_json(), machines.settings_files(), MACHINES)
        )
        for name, plan in plans.items():
            files = settings_files(plan.settings)
            claims.enter_context(claimed(folder / name, plan.as_json(), files))
        on_begin()
        for name, plan in plans.items():
            unfinished_here, done_here = unfinished(plan, folder / name, reuse)
            todo += [CellOnMachine(name, cell) for cell in unfinished_here]
            cells, found_done = cells + len(plan.cells()), found_done + done_here
        searches = {
            name: search
            for name, plan in plans.items()
            if (search := search_of(plan, folder / name, reuse)) is not None
        }
        work = {
            name: Work(plan, folder / name, dict(searches[name].idle) if name in searches else {})
            for name, plan in plans.items()
        }
        turns, more = next(iter(plans.values())).turns_per_cell, partial(_next_cells, searches)
        with offered_to_workers(core_for(next(iter(plans.values())).engine)):
            failed = run_cells(
                todo, _run_on_machine, work, folder, turns, workers, stop_on_error, more
            )
    cells += sum(search.cells for search in searches.values())
    found_done += sum(search.found_done for search in searches.values())
    return Outcome(folder, cells, found_done, failed)


def _next_cells(
    searches: Mapping[str, CapacitySearch], failed: Mapping[str, str]
) -> list[CellOnMachine]:
    cells: list[CellOnMachine] = []
    for machine, search in searches.items():
        prefix = f"{machine}/"
        here = {n.removeprefix(prefix): why for n, why in failed.items() if n.startswith(prefix)}
        cells += [CellOnMachine(machine, cell) for cell in search.next_cells(here)]
    return cells


def _run_on_machine(work: Mapping[str, Work], cell: CellOnMachine, tick: Tick) -> None:
    run_cell(work[cell.machine], cell.cell, tick)
