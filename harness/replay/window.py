"""The measured jobs of a cell in steady state: what a stream of jobs and agents have in common.

In: starts and ends of jobs, and their turns. Out: whether the cell is over, and its times in
done.json. `harness.replay.steady` and `harness.replay.agents` decide whether a window is accepted.
"""

from __future__ import annotations

from bisect import bisect_right

from harness.cells.job_times import TurnTimes
from servers.basics.clock import PS_PER_S
from servers.records.done import DoneRecord, Times
from servers.records.turns import TurnRecord

MAX_DOUBLINGS = 3


class Window:
    """The measured jobs are `first_job` … `end_job` − 1. `over`: the cell ends now."""

    def __init__(self, first_job: int, jobs: int, idle: Times) -> None:
        self.first_job, self.jobs = first_job, jobs
        self.unstable: str | None = None
        self.over = False
        self._idle = idle
        self._doublings = 0
        self._starts_ps: list[int] = []
        """Of all jobs so far, by number."""
        self._shared_tokens: list[int] = []
        self._ends_ps: list[int] = []
        """Ascending ends of all jobs."""
        self._end_of_job_ps: dict[int, int] = {}
        self._first_running = first_job
        """The first measured job that has not finished."""
        self._turns = TurnTimes()

    @property
    def end_job(self) -> int:
        return self.first_job + self.jobs

    def turn_ended(self, record: TurnRecord, job: int) -> None:
        if job >= self.first_job:
            self._turns.add(record, job)

    def job_ended(self, index: int, end_ps: int) -> None:
        """Add the end of a job; ends are added in order of time."""
        self._ends_ps.append(end_ps)
        self._end_of_job_ps[index] = end_ps
        while self._first_running in self._end_of_job_ps:
            self._first_running += 1
        self._judge()

    def _judge(self) -> None:
        """End the cell, or double its window, if the time of the window is over and all its jobs
        have finished."""
        while not self.over and self._first_running >= self.end_job and self._has_passed():
            if (reason := self._rejected()) is None:
                self.over = True
            elif self._doublings == MAX_DOUBLINGS:
                self._end(reason)
            else:
                self._doublings += 1
                self.jobs *= 2

    def _end(self, unstable: str) -> None:
        self.over, self.unstable = True, unstable

    def _has_passed(self) -> bool:
        raise NotImplementedError

    def _rejected(self) -> str | None:
        """Return why the complete window is not that of a steady state; None if it is."""
        raise NotImplementedError

    def _jct_s(self) -> list[float]:
        ends = self._end_of_job_ps
        measured = range(self.first_job, self.end_job)
        return [(ends[j] - self._starts_ps[j]) / PS_PER_S for j in measured if j in ends]

    def _found(self, first: int, end: int) -> float:
        """Return the mean number of jobs that the jobs `first` … `end` − 1 find in the system."""
        arrivals = self._starts_ps
        found = sum(j - bisect_right(self._ends_ps, arrivals[j]) for j in range(first, end))
        return found / (end - first)

    def record_in(self, done: DoneRecord) -> None:
        """Set the fields of a stream, when the cell is over."""
        done.steady = self.unstable is None
        done.unstable = self.unstable
        if jct_s := self._jct_s():
            done.times_s = self._turns.with_jcts(jct_s, self.first_job, self.end_job)
        done.idle_times_s = self._idle
