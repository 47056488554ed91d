"""Measures all jobs that arrive within a horizon, such as a day, from an empty machine.

In: arrivals and ends of jobs. Out: whether the cell is over, and then its fields of done.json. No
job arrives after the horizon, or after the largest number of jobs, and the cell ends when all have
finished, so the jobs are the same for all variants, and none is left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from harness.replay.window import Window
from servers.basics.clock import PS_PER_S
from servers.basics.errors import CellFailed
from servers.records.done import DoneRecord, JobsInSystem, Times, WindowRecord
from servers.records.settings import HorizonRecord

MAX_IDLE_JCTS, MAX_BURST = 50, 50
"""More jobs in the system than a burst, as many more, and those that arrive in this many mean JCTs
on an idle machine, end the cell. No realistic SLO allows that many."""


class HorizonWindow(Window):
    def __init__(self, jobs_per_s: float, horizon: HorizonRecord, idle: Times) -> None:
        super().__init__(0, 0, idle)
        self._until_ps = round(horizon.seconds * PS_PER_S)
        self._most_jobs = horizon.jobs
        self._is_past = False
        self.most_in_system = (
            horizon.burst + MAX_BURST + math.floor(MAX_IDLE_JCTS * jobs_per_s * idle.jct.mean)
        )

    def next_arrival(self, at_ps: int, shared_tokens: int) -> bool:
        """Return whether the next job arrives: it does so within the horizon, and is not one too
        many."""
        if at_ps >= self._until_ps or len(self._starts_ps) == self._most_jobs:
            self._until_ps = min(at_ps, self._until_ps)
            self._is_past, self.jobs = True, len(self._starts_ps)
            if not self.jobs:
                raise CellFailed("no job arrives within the horizon; give a longer --horizon")
            self._judge()
            return False
        arrived = len(self._starts_ps)
        self._starts_ps.append(at_ps)
        self._shared_tokens.append(shared_tokens)
        in_system = arrived - len(self._ends_ps)
        if in_system > self.most_in_system:
            self.jobs = arrived
            self._end(f"{in_system} jobs in the system, more than {self.most_in_system}")
        return not self.over

    def _has_passed(self) -> bool:
        return self._is_past

    def _rejected(self) -> str | None:
        return None

    def record_in(self, done: DoneRecord) -> None:
        super().record_in(done)
        starts, ends = self._starts_ps[: self.jobs], self._ends_ps
        until_ps = self._until_ps if self._is_past else starts[-1]
        done.window = WindowRecord(
            first_job=0,
            jobs=self.jobs,
            from_s=0.0,
            to_s=until_ps / PS_PER_S,
            finished_jobs=bisect_left(ends, until_ps) if self._is_past else None,
            shared_prefix_tokens=sum(self._shared_tokens[: self.jobs]),
        )
        done.jobs_in_system = JobsInSystem(
            mean=self._found(0, self.jobs), at_end=len(starts) - bisect_left(ends, until_ps)
        )
