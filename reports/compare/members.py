"""Compares two sweeps on several machines, machine by machine.

In: two folders with `members.json`. Out: one verdict, whose loads name the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from reports.compare.baseline import Side, read_side
from reports.compare.regression import invalid_cells
from reports.compare.verdict import Verdict
from reports.run_folder.members import has_members, labels, read_members
from servers.basics.errors import NotComparable
from servers.basics.phrasing import listed

Compare = Callable[[Side, Side], Verdict]


def compare_paths(base: Path, new: Path, compare: Compare) -> Verdict:
    """Compare two runs or baseline files, or two sweeps on several machines. A verdict says if they
    cannot be compared. Raises InvalidInput or InvalidRunFolder."""
    if not has_members(base) or not has_members(new):
        return _compared(base, new, compare)
    before, after = read_members(base), read_members(new)
    names = labels([*before, *after])
    old = dict(zip(names, before, strict=False))
    now = dict(zip(names[len(before) :], after, strict=True))
    verdicts = {
        machine: _compared(old[machine].folder, now[machine].folder, compare)
        for machine in old
        if machine in now
    }
    if not verdicts:
        refused = (
            f"{base} and {new}: have no machine in common; {base} has {listed(list(old))}, "
            f"and {new} {listed(list(now))}"
        )
        return Verdict(refused=refused)

    changes = [
        replace(change, load=f"{change.load}, {machine}")
        for machine, verdict in verdicts.items()
        for change in verdict.changes
    ]

    def on_each(lines: Callable[[Verdict], Iterable[str]], form: str) -> tuple[str, ...]:
        return tuple(form.format(e, m) for m, verdict in verdicts.items() for e in lines(verdict))

    return Verdict(
        tuple(sorted(changes, key=lambda change: not change.is_collapse)),
        (*on_each(lambda v: v.unpaired, "{0}, {1}"), *sorted(old.keys() ^ now.keys())),
        on_each(lambda v: v.invalid, "{1}: {0}"),
        tuple(words[0] for words in _contexts(verdicts.values()) if len(words) == 1),
        on_each(lambda v: v.valid, "{1}: {0}"),
        on_each(lambda v: v.different, "{0}, {1}"),
        on_each(lambda v: v.unstable, "{0}, {1}"),
        on_each(lambda v: v.allowed, "{0}, {1}"),
        "; ".join(verdict.refused for verdict in verdicts.values() if verdict.refused),
    )


def _compared(base: Path, new: Path, compare: Compare) -> Verdict:
    """Compare two sides. If they are refused, the verdict still has the checks of the cells."""
    one, other = read_side(base), read_side(new)
    try:
        return compare(one, other)
    except NotComparable as error:
        return Verdict(invalid=invalid_cells(one, other), valid=other.valid, refused=str(error))


def _contexts(verdicts: Iterable[Verdict]) -> Iterable[list[str]]:
    """Yield the different words at each place of the contexts."""
    for words in zip(*(verdict.context for verdict in verdicts), strict=False):
        yield list(dict.fromkeys(words))
