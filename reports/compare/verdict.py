"""The result of a comparison of two runs: a `Change` for each number, and the verdict on all.

docs/howto/compare.md defines the terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from reports.statistics.bootstrap import Estimate

CAPACITY = "capacity"
"""Load of a comparison of capacities."""
SUSTAINED, STEADY = "sustained", "steady state"
"""Metrics without a JCT. `SUSTAINED` compares the capacities of seeds without a number in one of
the runs, `STEADY` the seeds of a load of which some has no steady state."""

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
