"""Decides which jobs of agents are measured, and when their cell ends.

In: starts and ends of jobs, and the number of agents, each of which starts a job when its last one
has ended. Out: whether the cell is over, and then its fields of done.json. Jobs are numbered in the
order in which agents become free: first come the jobs that agents began before the cell, and jobs
in which the system settles, the next ones are measured, and further ones run until all measured
jobs have finished. The reasons for the constants are in docs/design/statistics.md, "Agents".
"""

from __future__ import annotations

import math

from harness.replay.window import Window
from servers.basics.clock import PS_PER_S
from servers.records.done import DoneRecord, Times, WindowRecord

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

    def record_in(self, done: DoneRecord) -> None:
        super().record_in(done)
        begin_ps, end_ps = self._free_ps[self.first_job], self._free_ps[self.end_job]
        done.window = WindowRecord(
            first_job=self.first_job,
            jobs=self.jobs,
            from_s=begin_ps / PS_PER_S,
            to_s=end_ps / PS_PER_S,
            finished_jobs=sum(begin_ps <= end < end_ps for end in self._ends_ps),
            shared_prefix_tokens=sum(self._shared_tokens[self.first_job : self.end_job]),
        )


def _moments(values: list[float]) -> tuple[float, float]:
    count = len(values)
    mean = math.fsum(values) / count
    return mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count
