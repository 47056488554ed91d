"""Selects the measured jobs of cells whose jobs are a stream (docs/design/statistics.md, "Steady
state").

In: cells and their turns. Out: the turns of measured jobs, the time to which throughput refers, and
which cells are unstable. Other cells have a fixed set of jobs and measure them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.loads import ladder_of
from reports.run_folder.read import CellRun
from reports.run_folder.turns import Turns, failed_turns, only

MIN_THROUGHPUT = 0.9
"""If a smaller share of the background requests finishes than arrives, a caveat says so."""

DEVIATIONS = 2
"""A backlog that grows by more than this many standard deviations of the arrivals in the same time
gets a caveat."""


def grows_beyond_chance(growth: float, jobs: int) -> bool:
    """Return whether a growth of the backlog by `growth` per arriving job, in a window of `jobs`,
    exceeds the variation of Poisson arrivals. False for NaN."""
    arrivals = jobs - jobs // 4
    return growth * arrivals > DEVIATIONS * math.sqrt(arrivals)


def unstable_cells(cells: Sequence[CellRun]) -> dict[str, str]:
    """Return the reasons why cells are unstable, by name.

    A variant that has no steady state at a rate has none at a higher rate with the same seed (the
    backlog of agents cannot grow, so this does not hold for their numbers). If a
    cell at a higher rate ended as stable, that was by chance, so it counts as unstable too.
    """
    reasons: dict[str, str] = {}
    lowest: dict[tuple[str, int], float] = {}
    for cell in sorted(cells, key=lambda cell: cell.key[1] or 0.0):
        variant, amount, seed = cell.key
        if amount is None or cell.done.window is None:
            continue
        name, reason = cell.folder.name, cell.done.unstable
        if reason is not None:
            reasons[name] = reason
        elif (variant, seed) in lowest:
            at = ladder_of(cell.config.arrivals).label(lowest[variant, seed])
            reasons[name] = f"unstable at {at}"
        if name in reasons and cell.config.agents is None:
            lowest.setdefault((variant, seed), amount)
    return reasons


def measured_turns(cell: CellRun, turns: Turns) -> Turns:
    window = cell.done.window
    if window is None:
        return turns
    index, first = turns["job_index"], window.first_job
    inside = (index >= first) & (index < first + window.jobs)
    if cell.config.scenario is not None:
        inside = turns["scheduled_at_s"] >= window.from_s
    return only(inside, turns)


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """The time to which throughput refers, and the work that finished in it."""

    begin_s: float
    end_s: float
    jobs: int
    turns: int

    @property
    def length_s(self) -> float:
        """NaN if the span is empty."""
        length_s = self.end_s - self.begin_s
        return length_s if length_s > 0 else math.nan


NO_SPAN = FinishedWork(math.nan, math.nan, 0, 0)


def span_of(cell: CellRun, turns: Turns, jobs: Turns) -> FinishedWork:
    """Return the time of the window, or from the first arrival to the last departure of a fixed
    set. `turns` are all turns of the cell, `jobs` the measured jobs."""
    window, good = cell.done.window, ~failed_turns(turns)
    if window is None:
        done = ~jobs["failed"]
        if not done.any():
            return NO_SPAN
        begin_s, end_s = jobs["arrival_s"][done].min(), jobs["departure_s"][done].max()
        return FinishedWork(float(begin_s), float(end_s), int(done.sum()), int(good.sum()))
    has_jobs = len(jobs["jct_s"]) or cell.config.scenario is not None
    if window.from_s is None or window.to_s is None or not has_jobs:
        return NO_SPAN
    begin_s, end_s = window.from_s, window.to_s
    ends_s = turns["finished_at_s"]
    inside = good & (ends_s >= begin_s) & (ends_s < end_s)
    return FinishedWork(begin_s, end_s, window.finished_jobs or 0, int(inside.sum()))
