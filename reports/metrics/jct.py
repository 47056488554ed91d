"""Combines the turns of a cell into jobs, which include the turns of their sub-agents, and computes
job completion times (JCTs) and how long turns wait.

docs/reference/metrics.md, "Symbols", defines the columns of jobs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from reports.metrics.alone import IdleMachine, least_job_s
from reports.metrics.metric import COUNT, SECONDS, Facts, Group, Metric, Value, mean, percentiles
from reports.metrics.waterfall import estimated_slowdown, waterfall
from reports.run_folder.turns import Column, Turns, failed_turns


def job_columns(turns: Turns, machine: IdleMachine | None) -> Turns:
    """Return columns with a value per job, in order of arrival.

    The columns are job_id, arrival a_j, departure d_j, JCT_j, bubble q_j, the lateness of all
    turns, whether the job failed, the parts of its time (`WATERFALL`), its least time, and its
    slowdown. Without a machine, the least time is NaN and the slowdown is estimated.
    """
    codes, names = pd.factorize(turns["job_id"], sort=True)
    arrival, departure = extremes(codes, len(names), turns)
    late = turns["sent_at_s"] - turns["scheduled_at_s"]
    parts = waterfall(turns, codes, arrival, departure)
    jct_s = departure - arrival
    if machine is None:
        least_s, slowdown = np.full(len(names), np.nan), estimated_slowdown(jct_s, parts)
    else:
        least_s = least_job_s(turns, codes, len(names), machine)
        slowdown = jct_s / least_s
    jobs = {
        "job_id": np.asarray(names, dtype=object),
        "arrival_s": arrival,
        "departure_s": departure,
        "jct_s": jct_s,
        "bubble_s": np.bincount(codes, turns["queue_s"], len(names)),
        "late_s": np.bincount(codes, late, len(names)),
        "failed": np.bincount(codes, failed_turns(turns), len(names)) > 0,
        **parts,
        "least_s": least_s,
        "slowdown": slowdown,
    }
    order = np.argsort(arrival, kind="stable")
    return {name: values[order] for name, values in jobs.items()}


def extremes(codes: Column, groups: int, turns: Turns) -> tuple[Column, Column]:
    """Return when the first turn of each group was due, and when its last turn finished."""
    first, last = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(first, codes, turns["scheduled_at_s"])
    np.maximum.at(last, codes, turns["finished_at_s"])
    return first, last


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
    return Metric(f"jct_p{p}_s", SECONDS, "lower", f"P{p}").means(meaning, detail)


JCT = Group(
    _jct,
    (
        Metric("jobs", COUNT).means("Number of finished jobs.", "Those that count in JCTs."),
        Metric("jct_mean_s", SECONDS, "lower", "Mean JCT").means(
            "Mean job completion time.", "d_j − a_j of finished jobs (Continuum v3, §6.1)."
        ),
        _percentile(
            *(50, "Half of the jobs finish within this time."),
            "Percentiles are linear between the two nearest ranks.",
        ),
        *(_percentile(p, f"{p}% of the jobs finish within this time.") for p in PERCENTILES[1:]),
        Metric("jct_steady_mean_s", SECONDS, "lower", "Steady mean").means(
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
        Metric("queue_mean_s", SECONDS, "lower", "Bubble per job").means(
            "Mean time that the turns of a job waited in the queue.", "Mean q_j."
        ),
        Metric("preemptions", COUNT, "lower", "Preemptions").means(
            "Number of times that a running turn lost its KV.", "Of all turns."
        ),
    ),
)
