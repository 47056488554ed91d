"""Reads runs on several machines for a comparison of their capacities per GPU and per dollar.

In: run folders with capacities, and the axes along which they may differ. Out: one `OnMachine` per
run, all for the same workload, SLO and seeds. Raises NotComparable and InvalidRunFolder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import to_builtins

from reports.answer.capacity_context import MachinePrice, price_of
from reports.compare.settings import differences
from reports.loads import Ladder, ladder_of
from reports.numbers import DASH
from reports.run_folder.machines import has_members, read_members
from reports.run_folder.read import load_run
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity, from_seeds
from reports.statistics.searched import searched
from servers.basics.errors import NotComparable
from servers.basics.phrasing import gpus_in_words, listed
from servers.records.sweep import SweepRecord

AXES = ("hardware", "model")
SAME = ("engine", "arrivals", "horizon", "background", "scenario", "baseline")
"""Settings that all runs share besides the workload, whether it is a stream, and the SLO."""


@dataclass(frozen=True, slots=True)
class MachineRun:
    folder: Path
    sweep: SweepRecord
    slo: str
    idle_mean_s: float
    """Mean JCT on the idle machine."""
    price: MachinePrice
    capacities: Sequence[VariantCapacity]

    @property
    def hardware(self) -> str:
        return gpus_in_words(self.sweep.hardware or "this machine", self.sweep.gpus)

    @property
    def model(self) -> str:
        return str(self.sweep.model)

    @property
    def seeds(self) -> set[int]:
        return set().union(*(each.by_seed for each in self.capacities))

    @property
    def ladder(self) -> Ladder:
        """The kind of load."""
        return ladder_of(self.sweep.arrivals)

    def per_gpu(self, each: VariantCapacity) -> Estimate | None:
        """Return the capacity per GPU."""
        return None if each.load is None else _scaled(each.load, 1 / self.price.gpus)

    def usd(self, each: VariantCapacity) -> Estimate | None:
        """Return the cost at capacity; None if the hardware has no price."""
        value = each.load
        if value is None or math.isnan(self.price.usd_per_h):
            return None
        cost = partial(self.price.usd, ladder=self.ladder)
        return Estimate(cost(value.value), cost(value.high), cost(value.low))


def _scaled(value: Estimate, factor: float) -> Estimate:
    return Estimate(value.value * factor, value.low * factor, value.high * factor)


@dataclass(frozen=True, slots=True)
class Across:
    machines: Sequence[MachineRun]
    seeds: Sequence[int]
    dropped_seeds: Mapping[str, Sequence[int]]
    """Seeds that not all runs have, by label of the machine."""

    @property
    def hardware(self) -> list[str]:
        return [str(machine.sweep.hardware) for machine in self.machines]

    def with_prices(self, usd_per_h: Mapping[str, float | None]) -> Across:
        """Replace the prices of one GPU, by hardware, that are not None."""
        machines = [
            machine
            if usd is None
            else replace(machine, price=MachinePrice(machine.price.gpus, usd))
            for machine in self.machines
            for usd in [usd_per_h[str(machine.sweep.hardware)]]
        ]
        return replace(self, machines=machines)

    def label(self, machine: MachineRun) -> str:
        """Return what distinguishes the machine from the others."""
        models = len({each.model for each in self.machines}) > 1
        hardware = len({each.hardware for each in self.machines}) > 1
        if models and hardware:
            return f"{machine.model} on {machine.hardware}"
        return machine.model if models else machine.hardware


def read_across(folders: Sequence[Path], axes: Sequence[str]) -> Across:
    """Read runs, or sweeps on several machines."""
    found = [_read(path) for path in _expanded(folders)]
    if len(found) < 2:
        raise NotComparable(f"{found[0].folder}: give at least two runs for --across")
    for other in found[1:]:
        _refuse_different(found[0], other, axes)
    _refuse_repeated(found)
    common = set.intersection(*(machine.seeds for machine in found))
    if not common:
        raise NotComparable(
            f"{found[0].folder} and {found[-1].folder}: the runs have no seed in common; "
            "run them again with the same --seeds"
        )
    machines = [
        replace(each, capacities=from_seeds(each.capacities, each.sweep.baseline, common))
        for each in found
    ]
    across = Across(machines, sorted(common), {})
    dropped = {
        across.label(machine): sorted(machine.seeds - common)
        for machine in found
        if machine.seeds - common
    }
    return replace(across, dropped_seeds=dropped)


def _expanded(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        if has_members(folder):
            yield from (member.folder for member in read_members(folder))
        else:
            yield folder


def _read(folder: Path) -> MachineRun:
    run = load_run(folder)
    search = searched(run)
    if search is None:
        raise NotComparable(
            f"{folder}: has no capacities; run the sweep without --once, --no-capacity and "
            "--scenario"
        )
    return MachineRun(
        folder,
        run.sweep,
        str(search.slo),
        search.idle_mean_s,
        price_of(run.sweep),
        search.found,
    )


def _refuse_different(one: MachineRun, other: MachineRun, axes: Sequence[str]) -> None:
    same = (*SAME, *(axis for axis in AXES if axis not in axes))
    found = [*differences(to_builtins(one.sweep), to_builtins(other.sweep), same)]
    if one.slo != other.slo:
        found.append(f"SLO {one.slo} and {other.slo}")
    if found:
        raise NotComparable(
            f"{one.folder} and {other.folder} differ in more than --across {','.join(axes)}: "
            f"{'; '.join(found)}; run them again with the same settings, best as one sweep: "
            "bench sweep --hardware a100-80g,h100"
        )


def _refuse_repeated(found: Sequence[MachineRun]) -> None:
    seen: dict[tuple[str, str], Path] = {}
    for machine in found:
        key = (machine.hardware, machine.model)
        if key in seen:
            raise NotComparable(
                f"{seen[key]} and {machine.folder} are both of {machine.model} on "
                f"{machine.hardware}; give one run per machine, or compare the two without --across"
            )
        seen[key] = machine.folder


def differing(across: Across) -> list[tuple[str, list[str]]]:
    """Return settings that differ though they are no axis and do not decide the machine: name, and
    the value of each machine."""
    rows: list[tuple[str, list[str]]] = []
    for title, value in DIFFERENCES.items():
        values = [value(machine.sweep) for machine in across.machines]
        if len(set(values)) > 1:
            rows.append((title, values))
    return rows


def _limit(name: str) -> Callable[[SweepRecord], str]:
    return lambda sweep: str(getattr(sweep.limits, name) or DASH)


DIFFERENCES: Mapping[str, Callable[[SweepRecord], str]] = {
    "step times": lambda sweep: str(sweep.profile.provenance or DASH),
    "turns at a time": _limit("max_num_seqs"),
    "tokens per step": _limit("step_tokens"),
    "admission": _limit("admission"),
    "long prefill": _limit("long_prefill"),
    "adaptive": _limit("long_prefill_adaptive"),
    "watermark": _limit("watermark"),
    "speculation": _limit("speculate"),
    "KV cache": lambda sweep: str(sweep.kv_cache_dtype or "auto"),
    "CPU time of steps": lambda sweep: str(sweep.scheduling or DASH),
    "policies": lambda sweep: listed([v.name for v in sweep.variants], at_most=30),
    "Turnstile": lambda sweep: str(sweep.turnstile_version or DASH),
    "code": lambda sweep: str(sweep.code_sha256 or DASH)[:12],
}
