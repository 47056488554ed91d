"""Computes how the backlog of a cell grows (docs/design/statistics.md, "Saturation").

In: the turns and jobs of a cell. Out: the growth of the backlog per arriving job.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from reports.metrics.metric import (
    COUNT,
    FLAG,
    SECONDS,
    SHARE,
    TEXT,
    Facts,
    Group,
    Metric,
    Unit,
    Value,
)
from reports.run_folder.turns import Column, Turns, failed_turns

WAITS = ("queue_s", "load_s", "decode_queue_s", "transfer_s", "preempted_s", "recompute_s")
GROWTH_AT_SATURATION = 0.1
"""A cell is saturated from this g on: one of ten arriving jobs adds to the backlog."""
JOBS_TO_JUDGE = 12
"""With fewer jobs, a third of the arrivals is too short to show a trend."""


def backlog_growth(turns: Turns, jobs: Turns) -> float:
    """Return g = (W̄₃ − W̄₁) / (⅔ n), the growth of the backlog per arriving job.

    W̄₁ and W̄₃ are the mean numbers of waiting jobs in the first and the last third of the time in
    which jobs arrive; ⅔ n jobs arrive between the middles of the two. NaN if there are fewer jobs
    than `JOBS_TO_JUDGE`.
    """
    count = len(jobs["arrival_s"])
    first, last = float(jobs["arrival_s"].min()), float(jobs["arrival_s"].max())
    if count < JOBS_TO_JUDGE or last <= first:
        return math.nan
    third = (last - first) / 3
    starts, ends = _waiting(turns)
    early = _mean_overlap(starts, ends, first, first + third)
    late = _mean_overlap(starts, ends, last - third, last)
    return (late - early) / (count * 2 / 3)


def _waiting(turns: Turns) -> tuple[Column, Column]:
    """Return intervals in which a job waits for the server, merged over its turns.

    Records do not show when a turn waited after its admission, so this time is assumed to follow
    the queueing.
    """
    waits = sum(turns[part] for part in WAITS)
    codes, _ = pd.factorize(turns["job_id"])
    starts = turns["sent_at_s"]
    order = np.lexsort((starts, codes))
    codes, starts, ends = codes[order], starts[order], (starts + waits)[order]
    # Jobs are shifted to disjoint ranges of time, so that one running maximum works for all.
    stretch = codes * (float(ends.max(initial=0.0)) + 1.0)
    reached = np.maximum.accumulate(ends + stretch)
    before = np.concatenate(([-np.inf], reached[:-1])) - stretch
    starts = np.maximum(starts, before)
    return starts, np.maximum(starts, ends)


def _mean_overlap(starts: Column, ends: Column, begin: float, end: float) -> float:
    inside = np.clip(ends, begin, end) - np.clip(starts, begin, end)
    return float(inside.sum() / (end - begin))


def _trend(facts: Facts) -> dict[str, Value]:
    """Return how the backlog grows while jobs arrive, and the time after the last arrival of a
    fixed set."""
    cell, jobs = facts.cell, facts.jobs
    failed = {"failed_turns": int(failed_turns(facts.turns).sum())}
    if cell.done.window is not None:
        system = cell.done.jobs_in_system
        return {
            **failed,
            "drain_s": math.nan,
            "drain_ratio": math.nan,
            "backlog_growth": math.nan
            if system is None or system.growth is None
            else system.growth,
            "saturated": bool(facts.unstable),
            "steady": not facts.unstable,
            "unstable": facts.unstable,
        }
    closed = cell.config.arrivals.startswith("closed")
    growth = math.nan if closed else backlog_growth(facts.turns, jobs)
    first_s, last_s = float(jobs["arrival_s"].min()), float(jobs["arrival_s"].max())
    end_s = float(jobs["departure_s"].max())
    return {
        **failed,
        "drain_s": end_s - last_s,
        "drain_ratio": (end_s - last_s) / (end_s - first_s) if end_s > first_s else 0.0,
        "backlog_growth": growth,
        "saturated": bool(growth >= GROWTH_AT_SATURATION),
        "steady": False,
        "unstable": "",
    }


TREND = Group(
    _trend,
    (
        Metric("failed_turns", COUNT, "lower", "Failed turns").means(
            "Turns that ended with an error."
        ),
        Metric("drain_s", SECONDS).means("Last d_j − last a_j.", "A stream has none."),
        Metric("drain_ratio", SHARE, title="Drain").means(
            "Share of the time of the cell after the last arrival."
        ),
        Metric("backlog_growth", Unit("jobs per job"), "lower", "Backlog growth").means(
            "Jobs that each arriving job adds to the backlog.",
            "g: growth of the jobs in the system of a"
            " [stream](../design/statistics.md#steady-state), of the waiting jobs of a [fixed"
            " set](../design/statistics.md#saturation).",
        ),
        Metric("saturated", FLAG).means("g ≥ 0.1 in a fixed set; an unstable stream."),
        Metric("steady", FLAG).means("Whether a stream is stable; false for a fixed set."),
        Metric("unstable", TEXT).means(
            "Why a stream is unstable; empty if it is stable.",
            "An unstable cell has no jobs and no JCT.",
        ),
    ),
)
