"""Calculates the capacity of one variant and one seed from outcomes of cells at some rates.

In: outcomes. Out: the capacity in jobs per second, or the reason why there is none. A rate is
sustained if the cell is stable and meets the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from reports.capacity.ladder import Ends, position, rung


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a cell at a rate."""

    jps: float
    tightest: float | None
    """The largest ratio of a statistic to its limit in the SLO; None if the cell is unstable."""

    @property
    def sustained(self) -> bool:
        return self.tightest is not None and self.tightest <= 1


class Kind(StrEnum):
    FOUND = "found"
    NEVER = "never"
    """Not even the lowest rate that differs from an idle machine is sustained."""
    ALWAYS = "always"
    """The highest rate that a search tries is sustained."""
    OPEN = "open"
    """Rates between `sustained` and `not_sustained` have not been run."""


@dataclass(frozen=True, slots=True)
class Capacity:
    kind: Kind
    jobs_per_s: float
    """NaN unless the capacity is found."""
    sustained: float | None
    """The highest rate up to which every rate that ran is sustained."""
    not_sustained: float | None
    """The lowest rate that is not sustained."""


def bracket(outcomes: Iterable[Outcome]) -> tuple[Outcome | None, Outcome | None]:
    """Return the highest sustained rate below the lowest rate that is not sustained, and that rate.

    A higher rate that seems to be sustained does not count: a queue that does not settle at one
    rate does not settle at a higher one, and a mean below the limit is luck there.
    """
    below: Outcome | None = None
    for outcome in sorted(outcomes, key=lambda o: o.jps):
        if not outcome.sustained:
            return below, outcome
        below = outcome
    return below, None


def capacity(outcomes: Iterable[Outcome], ends: Ends) -> Capacity:
    below, above = bracket(outcomes)
    rates = (below.jps if below else None, above.jps if above else None)
    if above is not None and above.jps <= rung(ends.lowest):
        return Capacity(Kind.NEVER, math.nan, *rates)
    if below is not None and below.jps >= rung(ends.highest):
        return Capacity(Kind.ALWAYS, math.nan, *rates)
    if below is None or above is None or rungs_between(below.jps, above.jps):
        return Capacity(Kind.OPEN, math.nan, *rates)
    return Capacity(Kind.FOUND, _between(below, above), *rates)


def rungs_between(low: float, high: float) -> range:
    """Return the integers k of the rungs strictly between two rates."""
    first, last = math.floor(position(low)) + 1, math.ceil(position(high)) - 1
    return range(first, last + 1)


def crossing(below: Outcome, above: Outcome) -> float | None:
    """Return the rate at which the SLO is just met, interpolated on logarithmic axes; None if a
    cell is unstable, because its JCT then depends on when it ended."""
    if below.tightest is None or above.tightest is None:
        return None
    low, high = math.log(below.tightest), math.log(above.tightest)
    share = -low / (high - low)
    return below.jps * math.exp(share * math.log(above.jps / below.jps))


def _between(below: Outcome, above: Outcome) -> float:
    """Return the crossing. Without one, the middle of two neighbouring rungs is at most 2.5% off,
    upwards as often as downwards."""
    found = crossing(below, above)
    return math.sqrt(below.jps * above.jps) if found is None else found
