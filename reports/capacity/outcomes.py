"""Reads outcomes of cells from `done.json`.

In: the contents of `done.json` of cells in steady state, and an SLO. Out: outcomes, and the idle
machine with the jobs of each seed.
"""

from __future__ import annotations

from reports.capacity.estimate import Outcome
from reports.capacity.search import Idle
from reports.capacity.slo import Slo
from servers.records.done import DoneRecord, Times


def outcome_of(load: float, done: DoneRecord, slo: Slo) -> Outcome:
    """Return the outcome of a cell at this load."""
    times, idle = done.times_s, done.idle_times_s
    if done.unstable is not None or times is None or idle is None:
        return Outcome(load, None)
    limit = slo.tightest_limit(times, idle)
    return Outcome(load, limit.share_of(times, idle), str(limit))


def idle_of(idle_times_s: Times, slo: Slo) -> Idle:
    return Idle(idle_times_s.jct.mean, slo.tightest(idle_times_s, idle_times_s))
