"""Reads outcomes of cells from `done.json`.

In: the contents of `done.json` of cells in steady state, and an SLO. Out: outcomes, and the idle
machine with the jobs of each seed.
"""

from __future__ import annotations

from reports.capacity.estimate import Outcome
from reports.capacity.search import Idle
from reports.capacity.slo import Slo
from servers.records.done import DoneRecord, Jct


def outcome_of(jps: float, done: DoneRecord, slo: Slo) -> Outcome:
    """Return the outcome of a cell at `jps` jobs per second."""
    if done.unstable is not None or done.jct_s is None or done.idle_jct_s is None:
        return Outcome(jps, None)
    return Outcome(jps, slo.tightest(done.jct_s, done.idle_jct_s))


def idle_of(idle_jct_s: Jct, slo: Slo) -> Idle:
    return Idle(idle_jct_s.mean, slo.tightest(idle_jct_s, idle_jct_s))
