"""Defines the ladder of rates on which capacities are searched: 1.05^k jobs/s, k an integer.

All variants, seeds and runs share it, so that their cells are at the same rates and can be compared
and reused. A rung is 5% above the one below, less than the spread of capacities between seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

STEP = 1.05
DIGITS = 4
"""Significant digits of a rate in the name of a cell's folder."""
LEAST_JOBS = 0.02
"""Mean number of jobs on an otherwise idle machine at the lowest rate of a search: jobs hardly ever
overlap there, so an SLO that is missed at this rate is missed at every rate."""
MOST_JOBS = 4096.0
"""The same at the highest rate of a search: sixteen times the turns that vLLM runs at a time by
default. A cell has 13 times as many jobs, more than a minute of work in virtual time."""


def rung(k: int) -> float:
    return float(f"{STEP**k:.{DIGITS}g}")


def position(jps: float) -> float:
    """Return the position of a rate on the ladder, an integer for a rung."""
    place = math.log(jps) / math.log(STEP)
    return float(round(place)) if rung(round(place)) == jps else place


def nearest_rung(jps: float) -> float:
    return rung(round(position(jps)))


@dataclass(frozen=True, slots=True)
class Ends:
    """The lowest and the highest rung of a search."""

    lowest: int
    highest: int


def ends_of(idle_mean_s: float) -> Ends:
    """Return the ends of the search for jobs whose mean JCT on an idle machine is `idle_mean_s`."""
    return Ends(
        math.floor(position(LEAST_JOBS / idle_mean_s)), math.ceil(position(MOST_JOBS / idle_mean_s))
    )
