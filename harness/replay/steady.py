"""Decides which jobs of a stream are measured, and when its cell ends.

In: arrivals and ends of jobs, and the JCT on an idle machine. Out: the burst with which the cell
begins, whether the cell is over, and then its fields of done.json. Jobs are numbered by arrival:
first come the burst and the jobs during which the system may recover from it, the next ones are
measured, and further ones arrive until all measured jobs have finished. The reasons for the
constants are in docs/design/statistics.md, "Steady state".
"""

from __future__ import annotations

import math
from bisect import bisect_left

from harness.replay.window import Window
from servers.records.done import DoneRecord, JobsInSystem, Times

BURST_JOBS, BURST_IDLE_JCTS = 25, 2
"""Jobs that arrive together at the beginning: this many, and as many as arrive in this many idle
JCTs."""
RECOVERY_JOBS, RECOVERY_IDLE_JCTS = 200, 10
"""The system may recover from the burst during this many jobs, or those that arrive in this many
idle JCTs if they are more."""
MEASURED_JOBS, MEASURED_IDLE_JCTS = 200, 10
"""The same for the first window."""
MIN_JCTS = 5
"""An accepted window is at least this many mean JCTs of its jobs long."""
MAX_GROWTH = 0.1
"""Of ten jobs that arrive in an accepted window, less than one adds to the jobs in the system."""
MIN_FINISHED = 0.9
"""Jobs that finish during an accepted window, as a share of those that arrive during it."""
MAX_IDLE_JCTS, MAX_BURST = 10, 50
"""More jobs in the system than arrive in this many idle JCTs, and a burst, are no steady state."""


class SteadyWindow(Window):
    def __init__(self, jobs_per_s: float, idle: Times) -> None:
        in_idle_jct = jobs_per_s * idle.jct.mean
        self._jobs_per_s = jobs_per_s
        self.most_in_system = math.floor(MAX_IDLE_JCTS * in_idle_jct) + MAX_BURST
        self.burst = BURST_JOBS + math.floor(BURST_IDLE_JCTS * in_idle_jct)
        recovery = max(RECOVERY_JOBS, math.ceil(RECOVERY_IDLE_JCTS * in_idle_jct))
        measured = max(MEASURED_JOBS, math.ceil(MEASURED_IDLE_JCTS * in_idle_jct))
        super().__init__(self.burst + recovery, measured, idle)

    def next_arrival(self, at_ps: int, shared_tokens: int) -> bool:
        """Add the next job, at the time when the job before it has arrived, and return whether it
        starts. `shared_tokens`: tokens of the first prompts of its programs that programs before it
        have too."""
        arrived = len(self._starts_ps)
        self._starts_ps.append(at_ps)
        self._shared_tokens.append(shared_tokens)
        in_system = arrived - len(self._ends_ps)
        if in_system > self.most_in_system:
            self._end(f"{in_system} jobs in the system, more than {self.most_in_system}")
        self._judge()
        return not self.over

    def _has_passed(self) -> bool:
        return len(self._starts_ps) >= self.end_job + 2

    def _rejected(self) -> str | None:
        """Return why the complete window has no steady state; None if it has one."""
        jct_s, window = self._jct_s(), f"a window of {self.jobs:,} jobs"
        mean_s = math.fsum(jct_s) / len(jct_s)
        if self.jobs / self._jobs_per_s < MIN_JCTS * mean_s:
            return f"{window} is shorter than {MIN_JCTS} mean JCTs"
        if (growth := self._growth()) >= MAX_GROWTH:
            return f"the jobs in the system grow by {growth:.0%} of the arrivals in {window}"
        if (share := self._finished() / self.jobs) < MIN_FINISHED:
            return f"only {share:.0%} as many jobs finish as arrive in {window}"
        return None

    def _finished(self) -> int:
        """Return how many jobs finish during the window, whenever they arrived."""
        begin, end = self._starts_ps[self.first_job], self._starts_ps[self.end_job]
        return bisect_left(self._ends_ps, end) - bisect_left(self._ends_ps, begin)

    def _growth(self) -> float:
        """Return the growth of the number of jobs in the system from the first to the last quarter
        of the window, per job that arrives between the middles of the two."""
        quarter = self.jobs // 4
        early = self._found(self.first_job, self.first_job + quarter)
        late = self._found(self.end_job - quarter, self.end_job)
        return (late - early) / (self.jobs - quarter)

    def _is_complete(self) -> bool:
        return self._first_running >= self.end_job

    def _bounds(self) -> tuple[int | None, int | None, int | None]:
        begin, end = (
            self._starts_ps[job] if job < len(self._starts_ps) else None
            for job in (self.first_job, self.end_job)
        )
        return begin, end, self._finished() if self._is_complete() else None

    def record_in(self, done: DoneRecord) -> None:
        super().record_in(done)
        arrived = len(self._starts_ps) - 1
        begin = min(self.first_job, arrived - 1)
        done.jobs_in_system = JobsInSystem(
            mean=self._found(begin, min(self.end_job, arrived)),
            at_end=arrived - len(self._ends_ps),
            growth=self._growth() if self._is_complete() else None,
        )
