"""Converts between jobs per second and jobs in flight with Little's law, and checks it.

In: the measured jobs of a stream or of agents. Out: the mean number of jobs in flight that the law
gives, and what was counted ÷ that.
"""

from __future__ import annotations

import math

from reports.metrics.metric import NONE, Facts, Group, Metric, Unit, Value, mean

LITTLE_WITHIN = 0.05
"""A larger difference from Little's law is marked: the conversion is not exact there."""


def _in_flight(facts: Facts) -> dict[str, Value]:
    """Return NaN for a fixed set of jobs, and without a steady state."""
    done, config = facts.cell.done, facts.cell.config
    jct_s, length_s = mean(facts.jobs["jct_s"]), facts.span.length_s
    in_flight = counted = math.nan
    if done.window is not None and config.agents is not None:
        per_s = facts.span.jobs / length_s
        in_flight = per_s * jct_s
        # The others are between two jobs.
        counted = config.agents - per_s * think_s(config.arrivals)
    elif config.horizon is not None:
        # Until the last job has ended, so that the law holds by definition.
        in_flight = len(facts.jobs["jct_s"]) / (done.virtual_s or math.nan) * jct_s
    elif done.window is not None and done.jobs_in_system is not None:
        in_flight = done.window.jobs / length_s * jct_s
        found = done.jobs_in_system.mean
        if found is not None and config.arrivals == "poisson":  # others do not find the mean
            counted = found
    return dict(zip(IN_FLIGHT.columns, (in_flight, counted / in_flight), strict=True))


def think_s(arrivals: str) -> float:
    """Return the mean think time of `agents` or `agents:SECONDS`."""
    return float(arrivals.partition(":")[2] or 0.0)


IN_FLIGHT = Group(
    _in_flight,
    (
        Metric("jobs_in_flight", Unit("jobs"), title="In flight", in_cells=False).means(
            "Mean number of jobs in flight, by Little's law.",
            "λ × mean JCT of a stream, with λ = measured jobs ÷ time (within a horizon until"
            " the last job has ended); throughput × mean JCT of agents. Unknown for a fixed"
            " set.",
        ),
        Metric("little_ratio", NONE).means(
            "Jobs in flight that were counted ÷ those by Little's law.",
            "Counted: `jobs_in_system` of `done.json`, or agents that do not think. Unknown"
            " within a horizon, and without Poisson arrivals.",
        ),
    ),
)
