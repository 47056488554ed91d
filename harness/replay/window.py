"""The measured jobs of a cell: of a window in steady state, of agents, or of a horizon.

In: starts and ends of jobs, and their turns. Out: whether the cell is over, and its times in
done.json. `harness.replay.steady` decides whether the window of a stream is accepted. Jobs of
agents are numbered in the order in which agents become free: first those begun before the cell,
then those in which the system settles, the measured ones, and further ones until these have
finished. After a horizon, such as a day, no job arrives, and the cell ends when all that arrived
after its burst have finished, so that its jobs are the same for all variants.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

from harness.cells.job import TurnTimes
from servers.basics.clock import PS_PER_S
from servers.basics.errors import CellFailed
from servers.records.done import DoneRecord, JobsInSystem, Times, WindowRecord
from servers.records.settings import HorizonRecord
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
        """Return why the complete window has no steady state; None if it has one."""
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
        from_ps, to_ps, finished = self._bounds()
        done.window = WindowRecord(
            first_job=self.first_job,
            jobs=self.jobs,
            from_s=None if from_ps is None else from_ps / PS_PER_S,
            to_s=None if to_ps is None else to_ps / PS_PER_S,
            finished_jobs=finished,
            shared_prefix_tokens=sum(self._shared_tokens[self.first_job : self.end_job]),
        )

    def _bounds(self) -> tuple[int | None, int | None, int | None]:
        """Return the beginning and the end of the window in ps, and how many jobs finish in it;
        None for what the cell did not reach."""
        raise NotImplementedError


MAX_IDLE_JCTS, MAX_BURST = 50, 50
"""More jobs in the system than a burst, as many more, and those that arrive in this many mean JCTs
on an idle machine, end the cell. No realistic SLO allows that many."""


class HorizonWindow(Window):
    def __init__(self, jobs_per_s: float, horizon: HorizonRecord, idle: Times) -> None:
        super().__init__(horizon.burst, 0, idle)
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
            self._is_past, self.jobs = True, len(self._starts_ps) - self.first_job
            if self.jobs <= 0:
                after = " after the burst" if self.first_job else ""
                raise CellFailed(
                    f"no job arrives{after} within the horizon; give a longer --horizon"
                )
            self._judge()
            return False
        arrived = len(self._starts_ps)
        self._starts_ps.append(at_ps)
        self._shared_tokens.append(shared_tokens)
        in_system = arrived - len(self._ends_ps)
        if in_system > self.most_in_system:
            self.jobs = arrived - self.first_job
            self._end(f"{in_system} jobs in the system, more than {self.most_in_system}")
        return not self.over

    def _has_passed(self) -> bool:
        return self._is_past

    def _rejected(self) -> str | None:
        return None

    def _bounds(self) -> tuple[int, int, int | None]:
        if not self._is_past:
            return 0, self._starts_ps[: self.end_job][-1], None
        return 0, self._until_ps, bisect_left(self._ends_ps, self._until_ps)

    def record_in(self, done: DoneRecord) -> None:
        super().record_in(done)
        _, until_ps, _ = self._bounds()
        done.jobs_in_system = JobsInSystem(
            mean=self._found(self.first_job, self.end_job),
            at_end=len(self._starts_ps[: self.end_job]) - bisect_left(self._ends_ps, until_ps),
        )


SETTLING_JOBS, SETTLING_PER_AGENT = 100, 2
"""Number of jobs before the measured ones, in all or for each agent, whichever is more, after the
jobs that the agents began before the cell."""
MEASURED_JOBS, MEASURED_PER_AGENT = 200, 5
"""The same for the first window, which therefore lasts about five mean JCTs or longer."""
MAX_DRIFT, MAX_DEVIATIONS = 0.1, 3.0
"""The halves of an accepted window do not differ in their mean JCT by more than this share of it
and by more than this many standard deviations of the difference."""


class AgentsWindow(Window):
    def __init__(self, agents: int, idle: Times) -> None:
        settling = max(SETTLING_JOBS, SETTLING_PER_AGENT * agents)
        measured = max(MEASURED_JOBS, MEASURED_PER_AGENT * agents)
        super().__init__(agents + settling, measured, idle)
        self.agents = agents
        self._free_ps: list[int] = []
        """When an agent became free for each job that has been chosen."""

    def job_chosen(self, free_ps: int, start_ps: int, shared_tokens: int) -> None:
        """Add the next job, for which an agent was free at `free_ps`. `shared_tokens`: tokens of
        the first prompts of its programs that programs before it have too."""
        self._free_ps.append(free_ps)
        self._starts_ps.append(start_ps)
        self._shared_tokens.append(shared_tokens)
        self._judge()

    def _has_passed(self) -> bool:
        return len(self._free_ps) > self.end_job

    def _rejected(self) -> str | None:
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

    def _bounds(self) -> tuple[int, int, int]:
        begin_ps, end_ps = self._free_ps[self.first_job], self._free_ps[self.end_job]
        return begin_ps, end_ps, sum(begin_ps <= end < end_ps for end in self._ends_ps)


def _moments(values: list[float]) -> tuple[float, float]:
    count = len(values)
    mean = math.fsum(values) / count
    return mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count
