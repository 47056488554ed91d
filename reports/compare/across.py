"""Reads runs on several machines for a comparison of their capacities per GPU and per dollar.

In: run folders with capacities, and the axes along which they may differ. Out: a `MembersReport`,
all of whose runs have the same workload, SLO and seeds. Raises NotComparable and InvalidRunFolder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import to_builtins

from reports.answer.capacity_context import MachinePrice
from reports.answer.members import MemberRun, member_runs
from reports.answer.report import read_report
from reports.compare.settings import differences
from reports.page.members import MembersReport
from reports.run_folder.members import Member, has_members, read_members
from reports.run_folder.read import read_sweep
from reports.statistics.best import winners
from reports.statistics.capacities import from_seeds
from servers.basics.errors import NotComparable

ACROSS = "across.html"
AXES = ("hardware", "model")
SAME = ("engine", "arrivals", "horizon", "background", "scenario", "baseline")
"""Settings that all runs share besides the workload, whether it is a stream, and the SLO."""


def read_across(
    folders: Sequence[Path], axes: Sequence[str], usd_per_h: Mapping[str, float | None]
) -> MembersReport:
    """Read runs, or sweeps on several machines. `usd_per_h`: prices of one GPU, by hardware, that
    replace those of the runs unless they are None."""
    reports = [(member, read_report(member.folder)) for member in _members(folders)]
    found = [_priced(run, usd_per_h) for run in member_runs(reports)]
    if len(found) < 2:
        raise NotComparable(f"{found[0].member.folder}: give at least two runs for --across")
    for run in found:
        if not run.slo:
            raise NotComparable(
                f"{run.member.folder}: has no capacities; run the sweep without --once, "
                "--no-capacity and --scenario"
            )
        _refuse_different(found[0], run, axes)
        if not run.capacities:
            raise NotComparable(f"{run.member.folder}: {run.answer.headline}")
    _refuse_repeated(found)
    common = set.intersection(*(run.seeds for run in found))
    if not common:
        raise NotComparable(
            f"{found[0].member.folder} and {found[-1].member.folder}: the runs have no seed in "
            "common; run them again with the same --seeds"
        )
    return MembersReport(reports, [_only(run, common) for run in found])


def hardware_of(folders: Sequence[Path]) -> list[str]:
    return [member.hardware for member in _members(folders)]


def _members(folders: Sequence[Path]) -> list[Member]:
    found: list[Member] = []
    for folder in folders:
        if has_members(folder):
            found += read_members(folder)
        else:
            sweep = read_sweep(folder)
            hardware = sweep.hardware or "this machine"
            found.append(Member(folder, hardware, str(sweep.model), sweep.gpus))
    return found


def _priced(run: MemberRun, usd_per_h: Mapping[str, float | None]) -> MemberRun:
    usd = usd_per_h.get(run.member.hardware)
    return run if usd is None else replace(run, price=MachinePrice(run.price.gpus, usd))


def _only(run: MemberRun, seeds: set[int]) -> MemberRun:
    """Return the run with the capacities of these seeds."""
    if run.seeds == seeds:
        return run
    capacities = from_seeds(run.capacities, run.baseline, seeds)
    names = tuple(each.variant for each in winners(capacities))
    answer = replace(run.answer, capacities=tuple(capacities), winners=names)
    return replace(run, answer=answer, dropped_seeds=sorted(run.seeds - seeds))


def _refuse_different(one: MemberRun, other: MemberRun, axes: Sequence[str]) -> None:
    same = (*SAME, *(axis for axis in AXES if axis not in axes))
    found = [*differences(to_builtins(one.sweep), to_builtins(other.sweep), same)]
    if one.slo != other.slo:
        found.append(f"SLO {one.slo} and {other.slo}")
    if found:
        raise NotComparable(
            f"{one.member.folder} and {other.member.folder} differ in more than --across "
            f"{','.join(axes)}: {'; '.join(found)}; run them again with the same settings, best as "
            "one sweep: bench sweep --hardware a100-80g,h100"
        )


def _refuse_repeated(found: Sequence[MemberRun]) -> None:
    seen: dict[tuple[str, str], Path] = {}
    for machine in found:
        key = (machine.machine, str(machine.sweep.model))
        if key in seen:
            raise NotComparable(
                f"{seen[key]} and {machine.member.folder} are both runs of {key[1]} "
                f"on {key[0]}; give one run per machine, or compare the two without --across"
            )
        seen[key] = machine.member.folder
