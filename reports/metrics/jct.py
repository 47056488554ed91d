"""Computes job completion times (JCTs) of a cell, and how long its turns wait."""

from __future__ import annotations

from reports.metrics.metric import (
    COUNT,
    LOWER,
    SECONDS,
    Facts,
    Group,
    Metric,
    Value,
    mean,
    percentiles,
)
from reports.run_folder.turns import Column, Turns

PERCENTILES = (50, 90, 95, 99)
EDGE = 0.2
"""Share of the jobs that the steady window leaves out at each end."""


def _jct(facts: Facts) -> dict[str, Value]:
    jct_s = facts.done["jct_s"]
    return {
        "jobs": len(jct_s),
        "jct_mean_s": mean(jct_s),
        **jct_percentiles(jct_s),
        "jct_steady_mean_s": mean(
            facts.kept["jct_s"] if facts.cell.done.window else steady(facts.kept)
        ),
    }


def jct_percentiles(jct_s: Column) -> dict[str, float]:
    points = percentiles(jct_s, PERCENTILES)
    return {f"jct_p{p}_s": v for p, v in zip(PERCENTILES, points, strict=True)}


def steady(jobs: Turns) -> Column:
    """Return JCTs of the finished jobs, excluding the first and the last fifth of arrivals."""
    edge = int(len(jobs["jct_s"]) * EDGE)
    within = slice(edge, len(jobs["jct_s"]) - edge)
    return jobs["jct_s"][within][~jobs["failed"][within]]


def _percentile(p: int, meaning: str, detail: str = "") -> Metric:
    return Metric(f"jct_p{p}_s", SECONDS, LOWER, f"P{p}").means(meaning, detail)


JCT = Group(
    _jct,
    (
        Metric("jobs", COUNT).means("Number of finished jobs.", "Those that count in JCTs."),
        Metric("jct_mean_s", SECONDS, LOWER, "Mean JCT").means(
            "Mean job completion time.", "d_j − a_j of finished jobs (Continuum v3, §6.1)."
        ),
        _percentile(
            *(50, "Half of the jobs finish within this time."),
            "Percentiles are linear between the two nearest ranks.",
        ),
        *(_percentile(p, f"{p}% of the jobs finish within this time.") for p in PERCENTILES[1:]),
        Metric("jct_steady_mean_s", SECONDS, LOWER, "Steady mean").means(
            "Mean JCT without the first and the last fifth of the jobs; for a stream, the"
            " mean JCT.",
            "[Steady window](#steady-window).",
        ),
    ),
)
WAITS = Group(
    lambda facts: {
        "queue_mean_s": mean(facts.done["bubble_s"]),
        "preemptions": float(facts.turns["preemptions"].sum()),
    },
    (
        Metric("queue_mean_s", SECONDS, LOWER, "Bubble per job").means(
            "Mean time that the turns of a job waited in the queue.", "Mean q_j."
        ),
        Metric("preemptions", COUNT, LOWER, "Preemptions").means(
            "Number of times that a running turn lost its KV.", "Of all turns."
        ),
    ),
)
