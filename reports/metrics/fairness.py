"""Computes whether a schedule is fast at the expense of some jobs (docs/reference/metrics.md,
"Fairness").
"""

from __future__ import annotations

import math

import numpy as np

from reports.metrics.metric import (
    NONE,
    SECONDS,
    Group,
    Metric,
    Value,
    largest,
    mean,
    of_variants,
    percentiles,
)
from reports.run_folder.turns import Column, Turns

THIRDS = ("jct_short_third_s", "jct_middle_third_s", "jct_long_third_s")
LONGEST_TENTH = "jct_longest_tenth_s"
FEW = "Unknown with fewer than ten jobs."


def fairness(jobs: Turns, turns: Turns) -> dict[str, Value]:
    """Return the columns. `jobs` and `turns` exclude errors."""
    slowdown = jobs["slowdown"]
    return {
        "slowdown_mean": mean(slowdown),
        "slowdown_p99": percentiles(slowdown, (99,))[0],
        "slowdown_max": largest(slowdown),
        "jain_index": _jain(1 / slowdown),
        "queue_max_s": largest(turns["queue_s"]),
        **_by_length(jobs["jct_s"], jobs["least_s"]),
    }


def _jain(speed: Column) -> float:
    """Return Jain's index (Σx)² / (n Σx²); NaN without jobs."""
    if not len(speed):
        return math.nan
    return float(speed.sum() ** 2 / (len(speed) * (speed**2).sum()))


def _by_length(jct_s: Column, least_s: Column) -> dict[str, float]:
    """Return the mean JCT of each third of the jobs, by least time, and of the longest tenth. NaN
    if there are fewer than ten jobs, or the least time is unknown."""
    if len(jct_s) < 10 or np.isnan(least_s).any():
        return dict.fromkeys((*THIRDS, LONGEST_TENTH), math.nan)
    ranked = jct_s[np.argsort(least_s, kind="stable")]
    thirds = np.array_split(ranked, 3)
    found = {name: float(third.mean()) for name, third in zip(THIRDS, thirds, strict=True)}
    return {**found, LONGEST_TENTH: float(ranked[-math.ceil(len(ranked) / 10) :].mean())}


def _third(column: str, which: str) -> Metric:
    meaning = f"Mean JCT of the third of the jobs that need the {which} time alone."
    title = column.split("_")[1].capitalize()
    return of_variants(column, SECONDS, "lower", title).means(meaning, FEW)


FAIRNESS = Group(
    lambda facts: fairness(facts.done, facts.good),
    (
        Metric("slowdown_mean", NONE, "lower", "Slowdown").means(
            "Mean of each job's JCT divided by the least time that it needs alone on the machine.",
            "[Mean σ_j](#fairness).",
        ),
        Metric("slowdown_p99", NONE, "lower", "P99 slowdown", pool="mean").means(
            "99% of the jobs have at most this slowdown."
        ),
        Metric("slowdown_max", NONE, "lower", "Max. slowdown", pool="max").means(
            "The largest slowdown of a job."
        ),
        Metric("jain_index", NONE, "higher", "Fairness").means(
            "Jain's index: 1 if all jobs are slowed equally.", "(Σ x)² ÷ (n Σ x²) of x_j = 1 ÷ σ_j."
        ),
        Metric("queue_max_s", SECONDS, "lower", "Longest wait", pool="max").means(
            "The longest time that a turn waited for its first admission."
        ),
        _third(THIRDS[0], "least"),
        _third(THIRDS[1], "middle"),
        _third(THIRDS[2], "most"),
        Metric(LONGEST_TENTH, SECONDS, "lower", "Longest jobs", pool="mean").means(
            "Mean JCT of the ⌈n/10⌉ jobs that need the most time alone.", FEW
        ),
    ),
)
