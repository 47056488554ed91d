"""Finds the jobs that a stall of the client machine delayed (docs/reference/metrics.md, "Stalls of
the client machine").

In: cells of a live engine, whose `done.json` has the stalls, and their turns. Out: ids of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.run_folder.read import CellRun
from reports.run_folder.turns import Column, Turns, only, read_columns
from servers.basics.errors import InvalidRunFolder

MAX_STALLED = 0.05
"""Largest share of a cell's jobs to leave out. If more are affected, all count, and the gate on
client lateness decides."""
BEFORE_S = 0.05
"""Data arriving in a stall is read when it ends, at most this long before its recorded end, …"""
AFTER_S = 0.1
"""… or this long after it."""

NO_JOBS: frozenset[str] = frozenset()
Load = tuple[float | None, int]
"""A rate and a seed: the cells of all variants run the same jobs."""


def stalled_turns(turns: Turns, stalls: Sequence[Sequence[float]]) -> Column:
    """Return which turns were sent late in a stall, or had a token that was read at its end."""
    due, sent = turns["scheduled_at_s"], turns["sent_at_s"]
    hit = np.zeros(len(due), dtype=bool)
    for from_s, to_s in stalls:
        hit |= (due < to_s) & (sent > from_s) & (sent - due > BEFORE_S)
        for read_s in (turns["first_token_at_s"], turns["finished_at_s"]):
            hit |= (read_s >= to_s - BEFORE_S) & (read_s <= to_s + AFTER_S)
    return hit


def stalled_jobs(cell: CellRun, turns: Turns) -> frozenset[str]:
    """Return the jobs that are left out because of the stalls of this cell."""
    stalls = cell.done.client_stalls
    if not stalls:
        return NO_JOBS
    hit = frozenset(turns["job_id"][stalled_turns(turns, stalls)])
    return hit if len(hit) <= MAX_STALLED * len(set(turns["job_id"])) else NO_JOBS


def without(jobs: frozenset[str], columns: Turns) -> Turns:
    """Return the columns of turns or jobs without some jobs."""
    if not jobs:
        return columns
    return only(np.array([job not in jobs for job in columns["job_id"]], dtype=bool), columns)


def stalled_by_load(cells: Sequence[CellRun]) -> dict[Load, frozenset[str]]:
    """Return the jobs that are left out in all cells of a load and seed, so that the cells have the
    same jobs."""
    found: dict[Load, frozenset[str]] = {}
    for cell in cells:
        if not cell.done.client_stalls:
            continue
        try:
            jobs = stalled_jobs(cell, read_columns(cell))
        except InvalidRunFolder:  # The cell has no result, which is reported elsewhere.
            continue
        load = cell.key[1:]
        found[load] = found.get(load, NO_JOBS) | jobs
    return found
