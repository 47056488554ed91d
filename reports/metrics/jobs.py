"""Combines the turns of a cell into jobs, which include the turns of their sub-agents.

In: the turns of a cell. Out: columns with a value per job. docs/reference/metrics.md, "Symbols",
defines them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from reports.metrics.alone import IdleMachine, least_job_s
from reports.metrics.waterfall import estimated_slowdown, waterfall
from reports.run_folder.turns import Column, Turns, failed_turns


def jobs_of(turns: pd.DataFrame, machine: IdleMachine | None) -> pd.DataFrame:
    """Return `job_columns` as a frame with the index job_id."""
    columns = job_columns({str(name): turns[name].to_numpy() for name in turns}, machine)
    return pd.DataFrame(columns).set_index("job_id")


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
