"""Calculates the capacity of one variant and one seed from outcomes of cells under some loads.

In: outcomes. Out: the capacity, or the reason why there is none. A load (a rate in jobs per second,
or a number of agents) is sustained if the cell is stable and meets the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from reports.loads import RATES, Ends, Ladder

WIDEST = 1.11
"""Factor between two rates whose capacity is interpolated, at most: two rungs."""
NEARLY_MET = 1.12
"""Factor between the limit of the SLO and what is measured at two such loads, at most. Closer loads
then changed capacities by 0.1%, a fiftieth of the deviation between seeds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a cell under a load."""

    load: float
    tightest: float | None
    """The largest ratio of a statistic to its limit in the SLO; None if the cell is unstable."""
    limit: str = ""
    """The limit with this ratio, as SLOs are written; empty if the cell is unstable."""

    @property
    def sustained(self) -> bool:
        return self.tightest is not None and self.tightest <= 1


class Kind(StrEnum):
    FOUND = "found"
    NEVER = "never"
    """Not even the lowest load that a search tries is sustained."""
    ALWAYS = "always"
    """The highest load that a search tries is sustained."""
    OPEN = "open"
    """Loads between `sustained` and `not_sustained` have not been run."""


@dataclass(frozen=True, slots=True)
class Capacity:
    kind: Kind
    load: float
    """NaN unless the capacity is found."""
    sustained: float | None
    """The highest load up to which every load that ran is sustained."""
    not_sustained: float | None
    """The lowest load that is not sustained."""
    limit: str = ""
    """The limit of the SLO that is missed there; empty if the cell there is unstable."""

    @property
    def is_missed(self) -> bool:
        """Whether the search has found the lowest load that is not sustained. It tries none if not
        even an idle machine meets the SLO."""
        return self.kind in (Kind.FOUND, Kind.NEVER) and self.not_sustained is not None

    def is_open_at(self, load: float) -> bool:
        """Whether an unfinished search has not decided yet if this load is sustained."""
        is_above = self.sustained is None or load > self.sustained
        is_below = self.not_sustained is None or load < self.not_sustained
        return self.kind == Kind.OPEN and is_above and is_below


def bracket(outcomes: Iterable[Outcome]) -> tuple[Outcome | None, Outcome | None]:
    """Return the highest sustained load below the lowest load that is not sustained, and that load.

    A higher load that seems to be sustained does not count: a queue that does not settle at one
    load does not settle at a higher one, and a mean below the limit is luck there.
    """
    below: Outcome | None = None
    for outcome in sorted(outcomes, key=lambda o: o.load):
        if not outcome.sustained:
            return below, outcome
        below = outcome
    return below, None


def capacity(outcomes: Iterable[Outcome], ends: Ends) -> Capacity:
    below, above = bracket(outcomes)
    loads = (below.load if below else None, above.load if above else None)
    limit = above.limit if above else ""
    if above is not None and above.load <= ends.lowest_load:
        return Capacity(Kind.NEVER, math.nan, *loads, limit)
    if below is not None and below.load >= ends.highest_load:
        return Capacity(Kind.ALWAYS, math.nan, *loads)
    if below is None or above is None or not locates(ends.ladder, below, above):
        return Capacity(Kind.OPEN, math.nan, *loads, limit)
    return Capacity(Kind.FOUND, _between(below, above), *loads, limit)


def locates(ladder: Ladder, below: Outcome, above: Outcome) -> bool:
    """Return whether these loads, a sustained one and one that is not, locate the capacity: they
    are neighbouring rungs, or close rates at which the SLO is nearly met. How many agents are
    sustained is asked exactly."""
    if not ladder.rungs_between(below.load, above.load):
        return True
    if ladder is not RATES or not below.tightest or above.tightest is None:
        return False
    if above.load > below.load * WIDEST:
        return False
    return above.tightest <= NEARLY_MET and below.tightest * NEARLY_MET >= 1


def crossing(below: Outcome, above: Outcome) -> float | None:
    """Return the load at which the SLO is just met, interpolated on logarithmic axes; None if a
    cell is unstable, because its JCT then depends on when it ended, or has nothing to measure."""
    if not below.tightest or above.tightest is None:
        return None
    low, high = math.log(below.tightest), math.log(above.tightest)
    share = -low / (high - low)
    return below.load * math.exp(share * math.log(above.load / below.load))


def _between(below: Outcome, above: Outcome) -> float:
    """Return the crossing. Without one, the middle of two neighbouring rungs is at most 2.5% off,
    upwards as often as downwards."""
    found = crossing(below, above)
    return math.sqrt(below.load * above.load) if found is None else found
