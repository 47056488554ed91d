"""Defines the loads at which capacities are searched: ladders of rates, and of numbers of agents.

All variants, seeds and runs share a ladder, so that their cells are at the same loads and can be
compared and reused. A rung is about 5% above the one below, less than the spread of capacities
between seeds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache

STEP = 1.05
MIN_JOBS = 25
"""Fewer jobs within a horizon say nothing about a rate."""
DIGITS = 4
"""Significant digits of a rate in the name of a cell's folder."""
LEAST_JOBS = 0.02
"""Mean number of jobs on an otherwise idle machine at the lowest rate of a search: jobs hardly ever
overlap there, so an SLO that is missed at this rate is missed at every rate."""
MOST_JOBS = 4096
"""The same at the highest rate of a search, and the largest number of agents: sixteen times the
turns that vLLM runs at a time by default. A cell has about ten to twenty times as many jobs, more
than a minute of work in virtual time."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Loads in ascending order, numbered by consecutive integers."""

    unit: str
    noun: str
    """The word for a load in sentences."""
    things: str
    """What capacities count."""
    short: str
    """A word for a load in titles."""
    axis: str
    """Title of an axis of loads."""
    cost: str
    """What a cost refers to."""
    unstable: str
    """What happens without a steady state."""
    least: str
    """Describes the lowest load of a search."""
    option: str
    """With which the user gives loads; also begins the loads in the names of cells."""

    def rung(self, k: int) -> float:
        return float(f"{STEP**k:.{DIGITS}g}")

    def position(self, load: float) -> float:
        """Return the position of a load on the ladder, an integer for a rung."""
        place = math.log(load) / math.log(STEP)
        return float(round(place)) if self.rung(round(place)) == load else place

    def nearest_rung(self, load: float) -> float:
        return self.rung(round(self.position(load)))

    def rungs_between(self, low: float, high: float) -> range:
        """Return the integers k of the rungs strictly between two loads."""
        first, last = math.floor(self.position(low)) + 1, math.ceil(self.position(high)) - 1
        return range(first, last + 1)

    def text(self, load: float) -> str:
        """Return a load or a capacity with its unit, such as `0.0257 jobs/s`."""
        return f"{load:.3g} {self.unit}"

    def label(self, load: float) -> str:
        """Return the exact load of a cell with its unit."""
        return f"{load:g} {self.unit}"

    def ends(self, idle_mean_s: float, least: float = 0.0) -> Ends:
        """Return the ends of a search, for jobs whose mean JCT on an idle machine is this, and
        loads of at least `least`."""
        low, high = LEAST_JOBS / idle_mean_s, MOST_JOBS / idle_mean_s
        lowest = math.floor(self.position(low))
        if least > low:
            lowest = math.ceil(self.position(least))
        return Ends(self, lowest, max(lowest, math.ceil(self.position(high))))

    def with_jobs(self, jobs: float, idle_mean_s: float) -> float:
        """Return the load under which this many jobs would run if no job waited."""
        return jobs / idle_mean_s


class AgentLadder(Ladder):
    """Whole numbers of agents: all up to 40, then steps of at most 5%."""

    __slots__ = ()

    def rung(self, k: int) -> float:
        return _agents()[min(max(k, 0), len(_agents()) - 1)]

    def position(self, load: float) -> float:
        agents = _agents()
        above = min(max(bisect_left(agents, load), 1), len(agents) - 1)
        low, high = agents[above - 1], agents[above]
        return above - 1 + math.log(load / low) / math.log(high / low)

    def text(self, load: float) -> str:
        number = f"{load:,.0f}" if load >= 1000 else f"{load:.3g}"
        return f"{number} {'agent' if number == '1' else 'agents'}"

    def label(self, load: float) -> str:
        return "1 agent" if load == 1 else f"{load:g} agents"

    def ends(self, idle_mean_s: float, least: float = 0.0) -> Ends:
        return Ends(self, 0, len(_agents()) - 1)

    def with_jobs(self, jobs: float, idle_mean_s: float) -> float:
        return jobs


@cache
def _agents() -> tuple[float, ...]:
    found = [1]
    while found[-1] < MOST_JOBS:
        found.append(min(MOST_JOBS, max(found[-1] + 1, int(found[-1] * STEP))))
    return tuple(map(float, found))


@dataclass(frozen=True, slots=True)
class Ends:
    """The lowest and the highest rung of a search."""

    ladder: Ladder
    lowest: int
    highest: int

    @property
    def lowest_load(self) -> float:
        return self.ladder.rung(self.lowest)

    @property
    def highest_load(self) -> float:
        return self.ladder.rung(self.highest)


RATES = Ladder(
    unit="jobs/s",
    noun="rate",
    things="jobs",
    short="rate",
    axis="jobs per second",
    cost="USD per 1,000 jobs",
    unstable="too many jobs wait",
    least="jobs that hardly ever overlap",
    option="jps",
)
AGENTS = AgentLadder(
    unit="agents",
    noun="number of agents",
    things="agents",
    short="agents",
    axis="agents in flight",
    cost="USD per agent-month",
    unstable="the mean JCT drifts",
    least="a single agent",
    option="agents",
)


def least_rate(horizon_s: float) -> float:
    """Return the lowest rate at which enough jobs arrive within a horizon."""
    return MIN_JOBS / horizon_s


def ladder_of(arrivals: str | None) -> Ladder:
    return AGENTS if (arrivals or "").partition(":")[0] == "agents" else RATES
