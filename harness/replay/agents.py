"""Decides which jobs of agents are measured, and when their cell ends.

In: starts and ends of jobs, and the number of agents, each of which starts a job when its last one
has ended. Out: whether the cell is over, and then its fields of done.json. Jobs are numbered in the
order in which agents become free: first come the jobs that agents began before the cell, and jobs
in which the system settles, the next ones are measured, and further ones run until all measured
jobs have finished. The reasons for the constants are in docs/design/statistics.md, "Agents".
"""

from __future__ import annotations

import math

from harness.cells.job_times import TurnTimes
from servers.basics.clock import PS_PER_S
from servers.records.done import DoneRecord, Times, WindowRecord
from servers.records.turns import TurnRecord

SETTLING_JOBS, SETTLING_PER_AGENT = 100, 2
"""So many jobs run before the measured ones, or so many for each agent if they are more, after the
jobs that the agents began before the cell."""
MEASURED_JOBS, MEASURED_PER_AGENT = 200, 5
"""The same for the first window, which therefore lasts about five mean JCTs or longer."""
MAX_DOUBLINGS = 3
MAX_DRIFT, MAX_DEVIATIONS = 0.1, 3.0
"""The halves of an accepted window do not differ in their mean JCT by more than this share of it
and by more than this many standard deviations of the difference."""


class AgentsWindow:
    """The measured jobs are `first_job` … `end_job` − 1. `over`: the cell ends now."""

    def __init__(self, agents: int, idle: Times) -> None:
        self._idle = idle
        settling = max(SETTLING_JOBS, SETTLING_PER_AGENT * agents)
        self.first_job = agents + settling
        self.jobs = max(MEASURED_JOBS, MEASURED_PER_AGENT * agents)
        self.unstable: str | None = None
        self.over = False
        self._doublings = 0
        self._free_ps: list[int] = []
        """When an agent became free for each job that has been chosen."""
        self._starts_ps: list[int] = []
        self._shared_tokens: list[int] = []
        self._ends_ps: list[int] = []
        """Ends of all jobs, in order of time."""
        self._end_of_job_ps: dict[int, int] = {}
        self._first_running = self.first_job
        """The first measured job that has not finished."""
        self._turns = TurnTimes()

    @property
    def end_job(self) -> int:
        return self.first_job + self.jobs

    def job_chosen(self, free_ps: int, start_ps: int, shared_tokens: int) -> None:
        """Add the next job, for which an agent was free at `free_ps`. `shared_tokens`: tokens of
        the first prompts of its programs that programs before it have too."""
        self._free_ps.append(free_ps)
        self._starts_ps.append(start_ps)
        self._shared_tokens.append(shared_tokens)
        self._judge()

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
        """End the cell, or double its window, if all its jobs have finished."""
        while (
            not self.over
            and self._first_running >= self.end_job
            and len(self._free_ps) > self.end_job
        ):
            drift = self._drift()
            if drift is None:
                self.over = True
            elif self._doublings == MAX_DOUBLINGS:
                self.over, self.unstable = True, drift
            else:
                self._doublings += 1
                self.jobs *= 2

    def _drift(self) -> str | None:
        """Return how the mean JCT drifts; None if it does not."""
        jct_s = self._jct_s()
        half = len(jct_s) // 2
        (early, early_s2), (late, late_s2) = _moments(jct_s[:half]), _moments(jct_s[half:])
        change = late - early
        deviation = math.sqrt(early_s2 + late_s2)
        mean = (early + late) / 2
        if abs(change) <= max(MAX_DRIFT * mean, MAX_DEVIATIONS * deviation):
            return None
        return (
            f"the mean JCT {'rises' if change > 0 else 'falls'} by {abs(change) / mean:.0%} in a "
            f"window of {self.jobs:,} jobs"
        )

    def _jct_s(self) -> list[float]:
        """Return the JCTs of the measured jobs that have finished."""
        ends = self._end_of_job_ps
        measured = range(self.first_job, self.end_job)
        return [(ends[j] - self._starts_ps[j]) / PS_PER_S for j in measured if j in ends]

    def record_in(self, done: DoneRecord) -> None:
        """Set the fields of a stream, when the cell is over."""
        begin_ps, end_ps = self._free_ps[self.first_job], self._free_ps[self.end_job]
        done.window = WindowRecord(
            first_job=self.first_job,
            jobs=self.jobs,
            from_s=begin_ps / PS_PER_S,
            to_s=end_ps / PS_PER_S,
            finished_jobs=sum(begin_ps <= end < end_ps for end in self._ends_ps),
            shared_prefix_tokens=sum(self._shared_tokens[self.first_job : self.end_job]),
        )
        done.steady = self.unstable is None
        done.unstable = self.unstable
        done.times_s = self._turns.with_jcts(self._jct_s(), self.first_job, self.end_job)
        done.idle_times_s = self._idle


def _moments(values: list[float]) -> tuple[float, float]:
    """Return the mean and its variance."""
    count = len(values)
    mean = math.fsum(values) / count
    return mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count
