"""Computes whether a schedule is fast at the expense of some jobs (docs/reference/metrics.md).

In: the finished jobs and the turns of a cell. Out: columns of `cells.csv`.
"""

from __future__ import annotations

import math

import numpy as np

from reports.run_folder.turns import Column, Turns

THIRDS = ("jct_short_third_s", "jct_middle_third_s", "jct_long_third_s")
LONGEST_TENTH = "jct_longest_tenth_s"


def fairness(jobs: Turns, turns: Turns) -> dict[str, float]:
    """Return the columns. `jobs` and `turns` exclude errors."""
    slowdown = jobs["slowdown"]
    return {
        "slowdown_mean": float(slowdown.mean()) if len(slowdown) else math.nan,
        "slowdown_p99": float(np.percentile(slowdown, 99)) if len(slowdown) else math.nan,
        "slowdown_max": float(slowdown.max()) if len(slowdown) else math.nan,
        "jain_index": _jain(1 / slowdown),
        "queue_max_s": float(turns["queue_s"].max()) if len(turns["queue_s"]) else math.nan,
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
