"""Reads outcomes of cells from `done.json`.

In: the contents of `done.json` of cells in steady state, and an SLO. Out: outcomes, and the idle
machine with the jobs of each seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.capacity.estimate import Outcome
from reports.capacity.search import Idle
from reports.capacity.slo import Slo


def outcome_of(jps: float, done: Mapping[str, Any], slo: Slo) -> Outcome:
    """Return the outcome of a cell at `jps` jobs per second."""
    if done["unstable"] is not None or "jct_s" not in done:
        return Outcome(jps, None)
    return Outcome(jps, slo.tightest(done["jct_s"], done["idle_jct_s"]))


def idle_of(idle_jct_s: Mapping[str, float], slo: Slo) -> Idle:
    return Idle(idle_jct_s["mean"], slo.tightest(idle_jct_s, idle_jct_s))
