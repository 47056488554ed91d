"""Compares the time that the same work took under different variants on a live engine.

In: the jobs of all cells. Out: a caveat for each part of the time that differs although no
scheduler affects it, so that part of the difference in JCTs comes from the machine.
"""

from __future__ import annotations

import pandas as pd

from reports.metrics.cells import Results
from servers.basics.phrasing import seconds
from servers.records.sweep import SweepRecord

PARTS = {"tool_s": "tool time", "decode_s": "decode time"}
MOST = 0.1
"""Larger relative differences are a caveat."""
MIN_SHARE = 0.02
"""Smaller differences, as a share of the mean JCT, do not matter."""


def different_times(results: Results, sweep: SweepRecord) -> list[str]:
    """Return at most one sentence per part, about the load with the largest difference.

    There are none in virtual time, where tools take exactly their time in the trace and steps their
    time in the profile, nor if the model's answers decide the work.
    """
    agent = sweep.agent
    if sweep.virtual_time is not None or (agent and not agent.guided):
        return []
    if results.jobs.empty:
        return []
    largest: dict[str, tuple[float, str]] = {}
    for load, jobs in results.jobs.groupby("load", sort=False):
        for part in PARTS:
            difference = _difference(jobs, part, str(load))
            if difference is not None:
                largest[part] = max(difference, largest.get(part, difference))
    return [sentence for _, sentence in largest.values()]


def _difference(jobs: pd.DataFrame, part: str, load: str) -> tuple[float, str] | None:
    """Compare the jobs that finished under all variants."""
    table = jobs.pivot_table(index=["seed", "job_id"], columns="variant", values=part).dropna()
    if table.empty or len(table.columns) < 2:
        return None
    means = table.mean().sort_values()
    least, most = float(means.iloc[0]), float(means.iloc[-1])
    if most <= (1 + MOST) * least or most - least < MIN_SHARE * float(jobs["jct_s"].mean()):
        return None
    more = f"{most / least - 1:.0%} longer" if most < 2 * least else "more than twice as long"
    than = "than" if most < 2 * least else "as"
    sentence = (
        f"The {PARTS[part]} of the same jobs is {more} with {means.index[-1]} {than} with "
        f"{means.index[0]} at {load} ({seconds(most)} instead of {seconds(least)} per job), so "
        "part of the difference between variants may come from the machine. --aa measures the"
        " baseline twice, which shows how much."
    )
    return most / max(least, 1e-9), sentence
