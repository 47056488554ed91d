"""Turns of a cell in; its jobs out, sub-agents inside (docs/metrics.md, "Symbols")."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.waterfall import slowdown, waterfall

Floats = npt.NDArray[Any]


def jobs_of(turns: pd.DataFrame) -> pd.DataFrame:
    """A row per job, by job_id, in order of arrival: a_j, d_j, JCT_j, bubble q_j, lateness of all
    turns, whether it failed; the parts of its time (`WATERFALL`), and its slowdown."""
    codes, names = pd.factorize(turns["job_id"], sort=True)
    late = turns["sent_at_s"] - turns["scheduled_at_s"]
    arrival, departure = extremes(codes, len(names), turns)
    jobs = pd.DataFrame(
        {
            "arrival_s": arrival,
            "departure_s": departure,
            "jct_s": departure - arrival,
            "bubble_s": np.bincount(codes, turns["queue_s"], len(names)),
            "late_s": np.bincount(codes, late, len(names)),
            "failed": np.bincount(codes, turns["error"].notna(), len(names)) > 0,
        },
        index=pd.Index(names, name="job_id"),
    )
    parts = waterfall(turns, jobs)
    parts["slowdown"] = slowdown(jobs["jct_s"].to_numpy(), parts)
    return jobs.join(parts).sort_values("arrival_s", kind="stable")


def extremes(codes: Floats, groups: int, turns: pd.DataFrame) -> tuple[Floats, Floats]:
    """When the first turn of each group was due, and when its last one finished."""
    first, last = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(first, codes, turns["scheduled_at_s"].to_numpy())
    np.maximum.at(last, codes, turns["finished_at_s"].to_numpy())
    return first, last
