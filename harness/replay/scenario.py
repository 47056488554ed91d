"""Schedules the turns of a scenario (`harness.load.scenario`), in virtual time and live.

In: jobs, and the rules. Out: calls of `send`. All agents begin at time 0 with their
warm-up. When its last answer has ended, the window begins: the earliest of the turns that follow is
due at once, and the others keep their distance to it. Turns that are due after the window are not
sent; those under way then are measured to their end. If no request of a job, or of any job, has
been under way for too long, further ones come earlier: the schedule takes them back from the engine
as soon as the last answer has ended, when it knows how long the pause would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from harness.replay.schedule import ActiveJob, ActiveProgram, Send, TurnSchedule
from servers.basics.clock import PS_PER_S, seconds
from servers.basics.errors import CellFailed
from servers.records.done import DoneRecord, WindowRecord
from servers.records.settings import ScenarioRecord

if TYPE_CHECKING:
    from harness.load.scenario import ScenarioJob
    from traces import Program


@dataclass(slots=True)
class _Due:
    """A turn that has not ended."""

    run: ActiveProgram
    at_ps: int
    gap_s: float
    is_sent: bool = False


class ScenarioSchedule(TurnSchedule):
    def __init__(
        self,
        jobs: Iterable[ScenarioJob],
        agents: int,
        scenario: ScenarioRecord,
        send: Send,
        take_back: Callable[[ActiveProgram], None],
    ) -> None:
        """`take_back` is called with a program whose sent turn is not due yet, and which will be
        sent again for an earlier time."""
        super().__init__((), send, self._agent_is_free)
        self._jobs: Iterator[ScenarioJob] = iter(jobs)
        self._agents, self._scenario, self._take_back = agents, scenario, take_back
        self._warm_turns: dict[str, int] = {}
        self._due: dict[str, _Due] = {}
        """By program."""
        self._held: list[_Due] = []
        """The first turns after the warm-up; `at_ps` is relative to the beginning of the window."""
        self._now_ps = 0
        self._begins_ps: int | None = None
        self._started = self._finished_jobs = 0
        self.left_out = 0

    def beginning(self) -> Iterator[None]:
        """Begin when the iterator is advanced, as an engine in virtual time expects."""
        self.begin()
        yield

    def arrivals(
        self, starts_s: Iterable[float] | None, in_flight: int | None
    ) -> Iterator[tuple[Program, int]]:
        """Start the first job of each agent. The schedule starts all others too."""
        self.begin()
        return iter(())

    def begin(self) -> None:
        for job in islice(self._jobs, self._agents):
            self._start(job, 0)
        self._after_turn()

    def _start(self, job: ScenarioJob, at_ps: int) -> None:
        self._warm_turns |= job.warm_turns
        self.left_out = job.left_out
        self.start_job(job.members, self._started, at_ps)
        self._started += 1

    def _agent_is_free(self, job: ActiveJob, at_ps: int) -> None:
        self._finished_jobs += self._begins_ps is not None and at_ps < self._until_ps
        self._start(next(self._jobs), at_ps)

    @property
    def _until_ps(self) -> int:
        return (self._begins_ps or 0) + round(self._scenario.window_s * PS_PER_S)

    def ended(self, run: ActiveProgram, finished_ps: int, *, failed: bool) -> None:
        del self._due[run.program.id]
        if failed and self._begins_ps is None:
            raise CellFailed(
                f"--scenario {self._scenario.name}: a warm-up request of {run.program.id} failed,"
                " so the window would begin without its KV"
            )
        self._now_ps = finished_ps
        super().ended(run, finished_ps, failed=failed)
        self._after_turn()

    def _after_turn(self) -> None:
        if self._begins_ps is None:
            if self._due:
                return
            self._begins_ps = self._now_ps
            first_ps = min(each.at_ps for each in self._held)
            for each in self._held:
                each.at_ps += self._now_ps - first_ps
                self._add(each)
        scenario = self._scenario
        jobs: dict[str, list[_Due]] = {}
        if scenario.job_idle_s is not None:
            for each in self._due.values():
                jobs.setdefault(each.run.job_id, []).append(each)
            for turns in jobs.values():
                self._bring_forward(turns, scenario.job_idle_s)
        self._bring_forward(list(self._due.values()), scenario.system_idle_s)

    def _bring_forward(self, turns: list[_Due], longest_s: float) -> None:
        """Let the first of the turns come after `longest_s` at most, and the others as much
        earlier, if none of them is under way."""
        first_ps = min((each.at_ps for each in turns), default=self._now_ps)
        earlier_ps = first_ps - self._now_ps - round(longest_s * PS_PER_S)
        if first_ps <= self._now_ps or earlier_ps <= 0:
            return
        for each in turns:
            if each.is_sent:
                self._take_back(each.run)
            each.at_ps -= earlier_ps
            each.gap_s = max(each.gap_s - seconds(earlier_ps), 0.0)
            self._add(each)

    def _next(self, run: ActiveProgram, gap_s: float) -> None:
        due = _Due(run, run.ready_ps + round(gap_s * PS_PER_S), gap_s)
        if self._begins_ps is None and run.turn >= self._warm_turns.get(run.program.id, 0):
            due.at_ps -= self._now_ps
            self._held.append(due)
        else:
            self._add(due)

    def _add(self, due: _Due) -> None:
        self._due[due.run.program.id] = due
        due.is_sent = self._begins_ps is None or due.at_ps < self._until_ps
        if due.is_sent:
            self._send_at(due.run, due.at_ps, due.gap_s)

    def record_in(self, done: DoneRecord) -> None:
        """Set the window, when all turns have ended. It measures requests, and no jobs."""
        begins_s = seconds(self._begins_ps or 0)
        done.left_out_programs = self.left_out
        done.window = WindowRecord(
            first_job=0,
            jobs=0,
            from_s=begins_s,
            to_s=begins_s + self._scenario.window_s,
            finished_jobs=self._finished_jobs,
        )
