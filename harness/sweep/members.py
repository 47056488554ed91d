"""A sweep on several machines, or after several bursts: a run folder for each, in a common folder.

In: settings with a list in --hardware, --model or --burst. Out: a folder that contains a run folder
for each, `members.json`, which names them, and `sweep.toml`, which repeats all. The run folders
are like single sweeps', so their cells are reused in both directions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.json import encode

from harness.cells.locks import Shard
from harness.engines.base import engine_kind
from harness.load.machines import bursts_of, each_burst, each_machine
from harness.load.option import elements
from harness.load.settings import Machine, SweepSettings
from harness.load.settings_file import settings_toml
from harness.sweep.folder import SETTINGS, claimed, with_copies, without_prices
from harness.sweep.plan import SweepPlan
from harness.sweep.resolve import resolve, resolve_each
from reports.run_folder.find import RUNS
from reports.run_folder.members import MEMBERS
from servers.basics.errors import InvalidInput
from servers.basics.text import slug
from servers.records.sweep import MemberRecord, MembersRecord


@dataclass(frozen=True, slots=True)
class MembersPlan:
    settings: SweepSettings
    plans: Mapping[str, SweepPlan]
    """By name of the run folder."""

    def record(self) -> MembersRecord:
        return MembersRecord(
            members=tuple(
                MemberRecord(
                    *(name, plan.engine.hardware, plan.engine.model, plan.engine.settings().gpus),
                    plan.horizon.burst if self._has_bursts and plan.horizon else None,
                )
                for name, plan in self.plans.items()
            )
        )

    @property
    def _has_bursts(self) -> bool:
        return len(bursts_of(self.settings)) > 1

    @property
    def noun(self) -> str:
        """The word for one of the sweeps."""
        return "burst" if self._has_bursts else "machine"

    def default_folder(self) -> Path:
        """Return a readable name that ends with a hash of the plans."""
        plans = [without_prices(plan.sweep_record()) for plan in self.plans.values()]
        digest = hashlib.sha256(encode(plans)).hexdigest()[:8]
        workload = next(iter(self.plans.values())).workload.name
        return RUNS / f"{slug(workload)}_{len(plans)}-{self.noun}s_{digest}"

    def claimed(
        self, folder: Path, arguments: Sequence[str], shard: Shard | None
    ) -> AbstractContextManager[None]:
        plan, files = self.record(), self.settings_files()
        return claimed(folder, plan, files, MEMBERS, arguments=arguments, shard=shard)

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
        load = next(iter(self.plans.values())).settings.load
        load = replace(load, burst=self.settings.load.burst)
        return {SETTINGS: settings_toml(replace(self.settings, machine=machine, load=load))}


def resolve_members(settings: SweepSettings) -> MembersPlan:
    kind = engine_kind(settings.machine.engine)
    if not kind.is_virtual:
        raise InvalidInput(
            f"--engine {kind.name}: runs on one machine, and --hardware, --model or --burst is a "
            "list; give one of them, or use --engine sim"
        )
    if len(bursts_of(settings)) > 1:
        each = each_burst(settings).items()
        return MembersPlan(settings, {f"burst{n}": resolve(one) for n, one in each})
    plans: dict[str, SweepPlan] = {}
    for plan in resolve_each(each_machine(settings)):
        name = f"{slug(plan.engine.hardware)}_{slug(plan.engine.model)}"
        if name in plans:
            raise _same_folder(plans[name].settings.machine, plan.settings.machine, name)
        plans[name] = plan
    return MembersPlan(settings, plans)


def _same_folder(one: Machine, other: Machine, folder: str) -> InvalidInput:
    if one.hardware == other.hardware:
        return InvalidInput(
            f"--model {one.model},{other.model}: both have the same folder, {folder}; rename one "
            "of the models' files or folders"
        )
    return InvalidInput(
        f"--hardware {one.hardware},{other.hardware}: both have the same folder, {folder}; give "
        "the GPU in one of the files another name"
    )
