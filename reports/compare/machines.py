"""Compares two sweeps on several machines, machine by machine.

In: two folders with `machines.json`. Out: one verdict, whose loads name the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from reports.compare.baseline import read_side
from reports.compare.regression import Verdict, compare_sides
from reports.phrasing import listed
from reports.run_folder.machines import Member, has_members, read_members
from servers.errors import NotComparable


def compare_paths(
    base: Path, new: Path, metrics: Sequence[str], max_regression: float, confidence: float
) -> Verdict:
    """Compare two runs or baseline files, or two sweeps on several machines. Raises NotComparable,
    InvalidBaseline or InvalidRunFolder."""
    if not has_members(base) or not has_members(new):
        return compare_sides(read_side(base), read_side(new), metrics, max_regression, confidence)
    old, now = _by_machine(base), _by_machine(new)
    common = [machine for machine in old if machine in now]
    if not common:
        raise NotComparable(
            f"{base} and {new}: have no machine in common; {base} has {listed(list(old))}, "
            f"and {new} {listed(list(now))}"
        )
    verdicts = {
        machine: compare_sides(
            read_side(old[machine].folder),
            read_side(now[machine].folder),
            metrics,
            max_regression,
            confidence,
        )
        for machine in common
    }
    return Verdict(
        tuple(
            replace(change, load=f"{change.load}, {machine}")
            for machine, verdict in verdicts.items()
            for change in verdict.changes
        ),
        (
            *(f"{each}, {m}" for m, verdict in verdicts.items() for each in verdict.unpaired),
            *sorted(old.keys() ^ now.keys()),
        ),
        tuple(f"{m}: {each}" for m, verdict in verdicts.items() for each in verdict.invalid),
        tuple(words[0] for words in _contexts(verdicts.values()) if len(words) == 1),
    )


def _contexts(verdicts: Iterable[Verdict]) -> Iterable[list[str]]:
    """Yield the different words at each place of the contexts."""
    for words in zip(*(verdict.context for verdict in verdicts), strict=False):
        yield list(dict.fromkeys(words))


def _by_machine(folder: Path) -> dict[str, Member]:
    return {member.label: member for member in read_members(folder)}
