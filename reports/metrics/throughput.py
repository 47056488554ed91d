"""Computes the throughput of a cell, what its jobs cost, and the jobs in flight by Little's law."""

from __future__ import annotations

import math
from collections.abc import Mapping

from reports.metrics.metric import NONE, PER_S, Facts, Group, Metric, Unit, Value, mean
from servers.records.sweep import PriceRecord

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


def _throughput(facts: Facts) -> dict[str, Value]:
    config, span = facts.cell.config, facts.span
    per_s = 1 / span.length_s
    jobs_per_s = span.jobs * per_s
    gpus = config.gpus or math.nan
    return {
        "throughput_jobs_per_s": jobs_per_s,
        "throughput_ratio": jobs_per_s / (config.jps or math.nan),
        "throughput_turns_per_min": span.turns * per_s * 60,
        "throughput_jobs_per_h_per_gpu": jobs_per_s * 3600 / gpus,
        "usd_per_job": math.nan,
    }


def usd_per_job(price: PriceRecord | None, row: Mapping[str, Value | None]) -> float:
    """Return the cost of a job of a cell; NaN without a price, GPUs or finished jobs. The price is
    the sweep's, so that another one changes no cell."""
    per_hour_per_gpu = row["throughput_jobs_per_h_per_gpu"]
    if price is None or not isinstance(per_hour_per_gpu, int | float) or not per_hour_per_gpu:
        return math.nan
    return price.usd_per_gpu_hour / per_hour_per_gpu


THROUGHPUT = Group(
    _throughput,
    (
        Metric("throughput_jobs_per_s", PER_S, "higher", "Jobs/s").means(
            "Jobs that finish per second.",
            "All that finish in the time of the cell ÷ that time; of a fixed set it includes start"
            " and drain.",
        ),
        Metric("throughput_ratio", NONE, "higher").means("Throughput ÷ λ."),
        Metric("throughput_turns_per_min", Unit("turns/min"), "higher").means(
            "Finished turns ÷ the same time."
        ),
        Metric("throughput_jobs_per_h_per_gpu", Unit("jobs/h/GPU"), "higher").means(
            "Finished jobs ÷ the same time ÷ `gpus` of `cell.json`.",
            "Unknown on CPUs and at a URL.",
        ),
        Metric("usd_per_job", Unit("USD/job"), "lower", "USD per job").means(
            "Price of the GPUs for the time of the cell, divided by its jobs.",
            "`price` of `sweep.json` ÷ `throughput_jobs_per_h_per_gpu`, with idle time.",
        ),
    ),
)
