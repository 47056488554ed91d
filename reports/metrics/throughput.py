"""Computes the throughput of a cell, and what its jobs cost."""

from __future__ import annotations

import math
from collections.abc import Mapping

from reports.metrics.metric import HIGHER, LOWER, NONE, PER_S, Facts, Group, Metric, Unit, Value
from servers.records.sweep import PriceRecord


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
        Metric("throughput_jobs_per_s", PER_S, HIGHER, "Jobs/s").means(
            "Jobs that finish per second.",
            "All that finish in the time of the cell ÷ that time; of a fixed set it includes start"
            " and drain.",
        ),
        Metric("throughput_ratio", NONE, HIGHER).means("Throughput ÷ λ."),
        Metric("throughput_turns_per_min", Unit("turns/min"), HIGHER).means(
            "Finished turns ÷ the same time."
        ),
        Metric("throughput_jobs_per_h_per_gpu", Unit("jobs/h/GPU"), HIGHER).means(
            "Finished jobs ÷ the same time ÷ `gpus` of `cell.json`.",
            "Unknown on CPUs and at a URL.",
        ),
        Metric("usd_per_job", Unit("USD/job"), LOWER, "USD per job").means(
            "Price of the GPUs for the time of the cell, divided by its jobs.",
            "`price` of `sweep.json` ÷ `throughput_jobs_per_h_per_gpu`, with idle time.",
        ),
    ),
)
