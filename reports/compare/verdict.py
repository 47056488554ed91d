"""The result of a comparison of two runs: a `Change` for each number, and the verdict on all, as
text for a terminal and as Markdown.

docs/howto/compare.md defines the terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reports.numbers import DASH
from reports.statistics.bootstrap import Estimate
from servers.basics.phrasing import counted, listed, seconds

CAPACITY = "capacity"
"""Load of a comparison of capacities."""
SUSTAINED, STEADY = "sustained", "steady state"
"""Metrics without a JCT. `SUSTAINED` compares the capacities of seeds without a number in one of
the runs, `STEADY` the seeds of a load if some have no steady state."""

NOT_STEADY, NONE_SUSTAINED = "no steady state", "none sustained"
"""What the runs have instead of a number, in all seeds."""

Outcome = Literal["identical", "regression", "slower", "faster", "noise", "unknown", "undecided"]
"""Unknown: there is no interval, because one seed says nothing about others. Undecided: neither run
has a number, or only bounds of it. A lower capacity is slower."""


@dataclass(frozen=True, slots=True)
class Change:
    variant: str
    load: str
    metric: str
    """Of a capacity, its unit."""
    pairs: int
    """Programs that were compared, each in all common seeds; in steady state, jobs; of capacities
    and of `STEADY`, seeds."""
    base: float | str
    """Seconds, or a capacity. A text if there is no number."""
    new: float | str
    change: Estimate
    """new ÷ base − 1. For times, positive values mean that the new run is slower. Infinite if one
    run has no steady state or sustains nothing, NaN if both."""
    outcome: Outcome
    note: str = ""
    """The seeds that were compared, if not all."""

    @property
    def is_capacity(self) -> bool:
        return self.load == CAPACITY

    @property
    def is_collapse(self) -> bool:
        """Whether the new run has no steady state, or sustains nothing, where the other does."""
        return self.outcome == "regression" and math.isinf(self.change.value)


@dataclass(frozen=True, slots=True)
class Verdict:
    changes: tuple[Change, ...] = ()
    unpaired: tuple[str, ...] = ()
    """Policies, loads and seeds that only one of the runs has."""
    invalid: tuple[str, ...] = ()
    """Cells of the new run without a result or with a failed gate, and damaged ones of both."""
    context: tuple[str, ...] = ()
    """Workload, model, machine and engine of both runs."""
    valid: tuple[str, ...] = ()
    """Cells of the new run that passed all checks; none if it is a baseline file."""
    different: tuple[str, ...] = ()
    """Cells of both runs whose results are not exactly equal, and what differs."""
    unstable: tuple[str, ...] = ()
    """Policies and loads without a steady state in either run."""
    allowed: tuple[str, ...] = ()
    """Settings that differ and may."""
    refused: str = ""
    """Why the runs were not compared."""
    must_be_identical: bool = False

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.outcome == "regression"]

    @property
    def good(self) -> bool:
        if self.must_be_identical and not self.identical:
            return False
        return not self.regressions and not self.invalid and not self.refused

    @property
    def identical(self) -> bool:
        """Whether all numbers are exactly equal, and the policies and loads are the same."""
        same = all(change.outcome == "identical" for change in self.changes)
        return same and not (self.different or self.unpaired or self.invalid or self.refused)


SIGNS = {
    "identical": "identical",
    "regression": "REGRESSION",
    "slower": "slower, within the limit",
    "faster": "faster",
    "noise": "noise",
    "unknown": "one seed: no interval",
    "undecided": "no steady state in either run",
}
CAPACITY_SIGNS = {
    "slower": "lower, within the limit",
    "faster": "higher",
    "undecided": "cannot be compared",
}
STEADY_SIGNS = {"faster": "now stable"}
ESCAPES = {ord(character): f"&#{ord(character)};" for character in "\\`*_{}[]<>#|&"}
MOST_DIFFERENT = 20
"""At most this many cells are listed that should be identical and are not."""


def headline(verdict: Verdict, max_regression: float) -> str:
    if verdict.refused:
        return f"not compared: {verdict.refused}"
    worst = verdict.regressions
    if worst:
        first = max(
            worst, key=lambda c: (abs(c.change.value), c.new in (NOT_STEADY, NONE_SUSTAINED))
        )
        # A lost steady state has no size.
        sized = all(math.isfinite(change.change.value) for change in worst)
        above = f" above {max_regression:.1%}" if sized else ""
        which = "; the largest" if len(worst) > 1 else ""
        return f"{counted(len(worst), 'regression')}{above}{which}: {_largest(first)}"
    if verdict.invalid:
        return f"no regression, but {counted(len(verdict.invalid), 'invalid cell')}"
    if verdict.must_be_identical and not verdict.identical:
        return f"not identical: {_what_differs(verdict)}"
    numbers = counted(len(verdict.changes), "number")
    if all(change.outcome == "identical" for change in verdict.changes):
        return f"all {numbers} are identical"
    return f"no regression above {max_regression:.1%} in {numbers}"


def _largest(change: Change) -> str:
    at = f"{change.variant} at {change.load}"
    name = f"capacity of {change.variant}" if change.is_capacity else at
    if isinstance(change.new, str):
        return f"{name} ({change.base}, now {change.new})"
    metric = "" if change.is_capacity else f", {change.metric}"
    return f"{name}{metric} {change.change.value:+z.1%}"


def _what_differs(verdict: Verdict) -> str:
    numbers = len(shown(verdict.changes))
    cells, only = len(verdict.different), len(verdict.unpaired)
    parts = [
        f"{numbers:,} of {counted(len(verdict.changes), 'number')}" if numbers else "",
        counted(cells, "cell") if cells else "",
        f"{counted(only, 'difference')} in policies, loads or seeds" if only else "",
    ]
    return f"{listed([part for part in parts if part])} differ"


def row(change: Change) -> tuple[str, ...]:
    e = change.change
    return (
        change.load,
        change.variant,
        change.metric,
        _value(change, change.base),
        _value(change, change.new),
        f"{e.value:+z.1%}" if math.isfinite(e.value) else DASH,
        f"{e.low:+z.1%} to {e.high:+z.1%}" if e.has_interval else DASH,
        sign(change),
    )


def _value(change: Change, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.3g} {change.metric}" if change.is_capacity else seconds(value)


def sign(change: Change) -> str:
    own = CAPACITY_SIGNS if change.is_capacity else STEADY_SIGNS if change.metric == STEADY else {}
    sign = own.get(change.outcome, SIGNS[change.outcome])
    return f"{sign} ({change.note})" if change.note else sign


HEAD = ("load", "policy", "metric", "base", "new", "change", "interval", "verdict")


def shown(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that are not identical."""
    return [change for change in changes if change.outcome != "identical"]


def notes(verdict: Verdict) -> list[str]:
    """Return what the table does not show, a line each."""
    different = verdict.different if verdict.must_be_identical else ()
    more = len(different) - MOST_DIFFERENT
    return [
        *(f"different settings: {line}" for line in verdict.allowed),
        *(f"not valid: {line}" for line in verdict.invalid),
        *(f"no steady state in either run: {line}" for line in verdict.unstable),
        *(f"in one run only: {line}" for line in verdict.unpaired),
        *(f"not identical: {line}" for line in different[:MOST_DIFFERENT]),
        *([f"not identical: {counted(more, 'more cell')}"] if more > 0 else []),
    ]


def markdown(verdict: Verdict, max_regression: float) -> str:
    mark = "✅" if verdict.good else "❌"
    lines = [f"### {mark} bench compare: {_cell(headline(verdict, max_regression))}", ""]
    if found := shown(verdict.changes):
        lines += [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        lines += [f"| {' | '.join(map(_cell, row(change)))} |" for change in found] + [""]
    same = len(verdict.changes) - len(found)
    lines += [f"Identical: {counted(same, 'number')}."] if same else []
    lines += [f"- {_cell(line)}" for line in notes(verdict)]
    if verdict.valid:
        cells = len(verdict.valid) + len(verdict.invalid)
        lines += ["", f"Valid: {len(verdict.valid):,} of {counted(cells, 'cell')} of the new run."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Escape markup, because names come from traces and files."""
    return " ".join(text.translate(ESCAPES).split())
