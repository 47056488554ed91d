"""Schedules the turns of a replay.

In: programs, their start times or the number of programs in flight, or an endless stream of jobs,
and the end of each turn. Out: a call of `send` for each turn, as soon as the turn's due time is
known. In an open loop a program
starts at its arrival time, independently of the server. A turn is due one recorded tool gap after
the end of the previous turn and of the sub-agents that join before it. A program stops at a failed
turn. Times in whole picoseconds since the start, virtual or real. The schedule keeps state only for
active programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from msgspec import UNSET, UnsetType

from servers.basics.clock import PS_PER_S, seconds
from servers.records.done import DoneRecord
from servers.records.turns import PromptPrefix, TurnRecord
from traces import Program, Turn


@dataclass(slots=True)
class ActiveJob:
    """A root program and its sub-agents, at least one of which has started and not ended."""

    id: str
    """Id of the root program."""
    index: int | None = None
    """Position in the order of arrival; None in a fixed set of programs."""
    members: tuple[Program, ...] = ()
    """All programs of a job of a stream."""
    turns: int | None = None
    """Number of turns of all programs of a job of a stream; None in a fixed set of programs."""
    active_programs: int = 0
    failed: bool = False
    is_background: bool = False
    """Whether it is a request beside the jobs."""


@dataclass(slots=True)
class ActiveProgram:
    """A program that has started and not ended."""

    program: Program
    job: ActiveJob
    turn: int = 0
    waits_for: int = 0
    """Number of active sub-agents that its next turn waits for."""
    ready_ps: int = 0
    """End of its latest turn, or of the latest sub-agent that it waited for, whichever is later."""
    finished_ps: int = 0

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def next_turn(self) -> Turn:
        return self.program.turns[self.turn]

    @property
    def is_last(self) -> bool:
        return self.turn == len(self.program.turns) - 1


Send = Callable[[ActiveProgram, int, TurnRecord], None]
"""Called with a program, the due time of its next turn in ps, and the turn's incomplete record."""
OnJobEnd = Callable[[ActiveJob, int], None]
"""Called with a job and the time in ps at which the last of its programs ended."""


class TurnSchedule:
    def __init__(
        self,
        programs: Sequence[Program],
        send: Send,
        on_job_end: OnJobEnd | None = None,
    ) -> None:
        self._programs = programs
        self._children: dict[str, list[Program]] = {}
        self._add_children(programs)
        self._send = send
        self._on_job_end = on_job_end
        self._runs: dict[str, ActiveProgram] = {}
        self._backlog: Iterator[Program] = iter(())
        """Root programs that each start when another ends (closed loop)."""
        self.finished_programs = self.failed_turns = 0

    def arrivals(
        self, starts_s: Iterable[float] | None, in_flight: int | None
    ) -> Iterator[tuple[Program, int]]:
        """Yield root programs and their start times in ps, in order of time.

        The caller passes each to `start`. Without `starts_s`, only the first `in_flight` roots are
        yielded (closed loop); the schedule starts the others when programs end.
        """
        if starts_s is not None:
            indices = [index for index, p in enumerate(self._programs) if p.fork is None]
            due_ps = [round(s * PS_PER_S) for s in starts_s]
            for at_ps, index in sorted(zip(due_ps, indices, strict=True)):
                yield self._programs[index], at_ps
        elif in_flight is not None:
            self._backlog = self._roots()
            for program in islice(self._backlog, in_flight):
                yield program, 0
        else:
            raise ValueError("neither arrival times nor a number of programs in flight")

    def record_in(self, done: DoneRecord) -> None:
        """Set what only this kind of schedule knows."""

    def _roots(self) -> Iterator[Program]:
        for program in self._programs:
            if program.fork is None:
                yield program

    def _add_children(self, programs: Iterable[Program]) -> None:
        for program in programs:
            if program.fork is not None:
                self._children.setdefault(program.fork.program_id, []).append(program)

    def start_job(self, members: tuple[Program, ...], index: int, at_ps: int) -> None:
        """Start a job of a stream: a root program, followed by its sub-agents."""
        self._add_children(members)
        turns = sum(len(program.turns) for program in members)
        self.start(members[0], at_ps, ActiveJob(members[0].id, index, members, turns))

    def start_background(self, request: Program, at_ps: int) -> None:
        """Start a request beside the jobs: a program of one turn, which is no job."""
        self.start(request, at_ps, ActiveJob(request.id, is_background=True))

    def start(self, program: Program, at_ps: int, job: ActiveJob | None = None) -> None:
        program = replace(program, turns=tuple(program.turns))
        job = job or ActiveJob(program.id)
        job.active_programs += 1
        run = ActiveProgram(program, job, ready_ps=at_ps, finished_ps=at_ps)
        self._runs[program.id] = run
        self._next(run, gap_s=0.0)

    def ended(self, run: ActiveProgram, finished_ps: int, *, failed: bool) -> None:
        """Report that the program's active turn has ended."""
        run.ready_ps = run.finished_ps = finished_ps
        if failed:
            self.failed_turns += not run.job.is_background
            run.job.failed = True
            self._program_ended(run)
            return
        self._fork(run)
        run.turn += 1
        if run.turn == len(run.program.turns):
            self.finished_programs += not run.job.is_background
            self._program_ended(run)
        elif not run.waits_for:
            self._next(run, run.program.turns[run.turn - 1].tool_gap_s)

    def _next(self, run: ActiveProgram, gap_s: float) -> None:
        self._send_at(run, run.ready_ps + round(gap_s * PS_PER_S), gap_s)

    def _send_at(self, run: ActiveProgram, at_ps: int, gap_s: float) -> None:
        turn, at_s = run.next_turn, seconds(at_ps)
        previous = run.program.turns[run.turn - 1] if run.turn else None
        record = TurnRecord(
            program_id=run.program.id,
            turn=run.turn,
            job_id=run.job.id,
            job_index=UNSET if run.job.index is None else run.job.index,
            job_turns=UNSET if run.job.turns is None else run.job.turns,
            background=True if run.job.is_background else UNSET,
            scheduled_at_s=at_s,
            sent_at_s=at_s,
            kept_tokens=turn.kept_tokens,
            tools=turn.tools,
            gap_s=float(gap_s),
            gap_provenance=str(previous.gap_provenance) if previous else None,
            wait_s=seconds(run.ready_ps - run.finished_ps),
            system=shared_prefix(run.program, run.turn),
            shared_tokens=turn.prefixes[-1].tokens if turn.prefixes else UNSET,
        )
        self._send(run, at_ps, record)

    def _fork(self, run: ActiveProgram) -> None:
        children = self._children.get(run.program.id)
        if children is None:
            return
        for child in children:
            fork = child.fork
            if fork is None or fork.after_turn != run.turn:
                continue
            self.start(child, run.finished_ps + round(fork.delay_s * PS_PER_S), run.job)
        run.waits_for = sum(
            child.fork is not None
            and child.fork.joined_before_turn == run.turn + 1
            and child.id in self._runs
            for child in children
        )

    def _program_ended(self, run: ActiveProgram) -> None:
        del self._runs[run.program.id]
        run.job.active_programs -= 1
        if not run.job.active_programs:
            self._job_ended(run)
        fork = run.program.fork
        if fork is None:
            if run.job.is_background:
                return
            if (following := next(self._backlog, None)) is not None:
                self.start(following, run.finished_ps)
            return
        parent = self._runs.get(fork.program_id)
        if parent is not None and parent.waits_for and fork.joined_before_turn == parent.turn:
            parent.waits_for -= 1
            parent.ready_ps = max(parent.ready_ps, run.finished_ps)
            if not parent.waits_for:
                self._next(parent, parent.program.turns[parent.turn - 1].tool_gap_s)

    def _job_ended(self, run: ActiveProgram) -> None:
        for program in run.job.members:
            self._children.pop(program.id, None)
        if self._on_job_end is not None:
            self._on_job_end(run.job, run.finished_ps)


def shared_prefix(program: Program, turn: int) -> PromptPrefix | UnsetType:
    """Return the record's `system` field: in turn 0, the prefix that other programs share."""
    if turn or program.prefix is None:
        return UNSET
    return PromptPrefix(program.prefix.id, program.prefix.tokens)
