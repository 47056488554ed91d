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
from pathlib import Path
from typing import Any

import orjson

from harness.cells.names import slug
from harness.console import print_message
from harness.load.machines import each_machine
from harness.load.option import elements
from harness.load.settings import SweepSettings
from harness.load.settings_file import settings_toml
from harness.sweep.folder import GPU, PROFILE, SETTINGS, claimed, settings_files
from harness.sweep.plan import SweepPlan, resolve_each
from harness.sweep.run import Outcome, run_claimed
from reports.phrasing import counted
from reports.run_folder.find import RUNS
from reports.run_folder.machines import FORMAT, MACHINES
from servers.errors import InvalidInput
from servers.profiles.files import is_file
from servers.profiles.gpu_file import is_gpu_file


@dataclass(frozen=True, slots=True)
class MachinesPlan:
    settings: SweepSettings
    plans: Mapping[str, SweepPlan]
    """By name of the run folder."""

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "machines": [
                {"folder": name, "hardware": plan.engine.hardware, "model": plan.engine.model}
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
        for name, plan in self.plans.items():
            given = plan.settings.machine.hardware or ""
            if is_gpu_file(given) or is_file(given):
                copies.setdefault(given, f"{name}/{GPU if is_gpu_file(given) else PROFILE}")
        names = [copies.get(name, name) for name in elements(machine.hardware)]
        hardware = ",".join(names) or None
        return {
            SETTINGS: settings_toml(
                replace(self.settings, machine=replace(machine, hardware=hardware))
            )
        }


def resolve_machines(settings: SweepSettings) -> MachinesPlan:
    plans: dict[str, SweepPlan] = {}
    for plan in resolve_each(each_machine(settings)):
        name = f"{slug(plan.engine.hardware)}_{slug(plan.engine.model)}"
        if name in plans:
            raise InvalidInput(
                f"--hardware and --model: two machines would have the same folder, {name}; give "
                "the GPU in one of the files another name"
            )
        plans[name] = plan
    return MachinesPlan(settings, plans)


def run_machines(
    machines: MachinesPlan,
    folder: Path,
    *,
    workers: int,
    stop_on_error: bool = False,
    reuse: bool = True,
    on_begin: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run the sweeps one after the other. `on_begin` is called after all have passed all checks.

    In the outcome, the name of a cell begins with that of its run folder.
    """
    plans = machines.plans
    failed: dict[str, str] = {}
    cells = found_done = 0
    with ExitStack() as claims:
        claims.enter_context(
            claimed(folder, machines.as_json(), machines.settings_files(), MACHINES)
        )
        for name, plan in plans.items():
            files = settings_files(plan.settings)
            claims.enter_context(claimed(folder / name, plan.as_json(), files))
        on_begin()
        for number, (name, plan) in enumerate(plans.items(), start=1):
            print_message(f"machine {number} of {counted(len(plans), 'machine')}: {name}")
            outcome = run_claimed(
                plan, folder / name, workers, stop_on_error=stop_on_error, reuse=reuse
            )
            cells, found_done = cells + outcome.cells, found_done + outcome.found_done
            failed |= {f"{name}/{cell}": error for cell, error in outcome.failed.items()}
            if failed and stop_on_error:
                break
    return Outcome(folder, cells, found_done, failed)
