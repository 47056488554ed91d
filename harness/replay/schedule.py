"""The course of a replay: which turn is due when, and what its line says of that.

In: programs, their starts or how many may be in flight, and how each turn ended. Out: a call of
`send` for each turn as soon as it is known when it is due. Open loop: a program starts at its time
whatever the server does; a turn is due when the previous one has ended, plus the recorded tool
gap, plus the wait for sub-agents that join there. A program stops at a failed turn. Knows neither
engine nor clock: times are whole picoseconds since the start, virtual or real. State is kept of the
programs under way alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from servers.profiles import PS_PER_S
from traces import Program, Turn

Line = dict[str, Any]


@dataclass(slots=True)
class ActiveProgram:
    """A program under way."""

    program: Program
    job_id: str
    turn: int = 0
    waits_for: int = 0
    """Sub-agents that its next turn still waits for."""
    ready_ps: int = 0
    """End of its last turn, or of the last sub-agent that it waited for."""
    finished_ps: int = 0

    @property
    def next_turn(self) -> Turn:
        return self.program.turns[self.turn]

    @property
    def is_last(self) -> bool:
        return self.turn == len(self.program.turns) - 1


Send = Callable[[ActiveProgram, int, Line], None]
"""Takes a program, the time at which its next turn is due, and the turn's line so far."""


class TurnSchedule:
    def __init__(self, programs: Sequence[Program], send: Send) -> None:
        self._programs = programs
        self._children: dict[str, list[Program]] = {}
        for program in programs:
            if program.fork is not None:
                self._children.setdefault(program.fork.program_id, []).append(program)
        self._send = send
        self._runs: dict[str, ActiveProgram] = {}
        self._backlog: Iterator[Program] = iter(())
        """Roots that start when another ends (closed loop)."""
        self.finished_programs = self.failed_turns = 0

    def arrivals(
        self, starts_s: Iterable[float] | None, in_flight: int | None
    ) -> Iterator[tuple[Program, int]]:
        """What to `start`, and when, in order of time: all programs that are no sub-agents, at
        `starts_s` in their order; without those the first `in_flight` of them (closed loop), which
        the others then follow by themselves."""
        roots = (p for p in self._programs if p.fork is None)
        if starts_s is not None:
            places = [place for place, p in enumerate(self._programs) if p.fork is None]
            due_ps = [round(s * PS_PER_S) for _, s in zip(places, starts_s, strict=True)]
            for at in sorted(range(len(due_ps)), key=due_ps.__getitem__):
                yield self._programs[places[at]], due_ps[at]
        elif in_flight is not None:
            self._backlog = roots
            yield from ((program, 0) for program in islice(roots, in_flight))
        else:
            raise ValueError("replay needs arrival times or a number of programs in flight")

    def start(self, program: Program, at_ps: int, job_id: str | None = None) -> None:
        program = replace(program, turns=tuple(program.turns))
        run = ActiveProgram(program, job_id or program.id, ready_ps=at_ps, finished_ps=at_ps)
        self._runs[program.id] = run
        self._next(run, gap_s=0.0)

    def ended(self, run: ActiveProgram, finished_ps: int, *, failed: bool) -> None:
        """The turn that was sent last for this program is over."""
        run.ready_ps = run.finished_ps = finished_ps
        if failed:
            self.failed_turns += 1
            self._program_ended(run)
            return
        self._fork(run)
        run.turn += 1
        if run.turn == len(run.program.turns):
            self.finished_programs += 1
            self._program_ended(run)
        elif not run.waits_for:
            self._next(run, run.program.turns[run.turn - 1].tool_gap_s)

    def _next(self, run: ActiveProgram, gap_s: float) -> None:
        turn = run.next_turn
        at_ps = run.ready_ps + round(gap_s * PS_PER_S)
        previous = run.program.turns[run.turn - 1] if run.turn else None
        line: Line = {
            "program_id": run.program.id,
            "turn": run.turn,
            "job_id": run.job_id,
            "scheduled_at_s": at_ps / PS_PER_S,
            "sent_at_s": at_ps / PS_PER_S,
            "kept_tokens": turn.kept_tokens,
            "tools": list(turn.tools),
            "gap_s": gap_s,
            "gap_provenance": str(previous.gap_provenance) if previous else None,
            "wait_s": (run.ready_ps - run.finished_ps) / PS_PER_S,
            **shared_prefix(run.program, run.turn),
        }
        self._send(run, at_ps, line)

    def _fork(self, run: ActiveProgram) -> None:
        for child in self._children.get(run.program.id, ()):
            fork = child.fork
            if fork is None or fork.after_turn != run.turn:
                continue
            self.start(child, run.finished_ps + round(fork.delay_s * PS_PER_S), run.job_id)
        run.waits_for = sum(
            child.fork is not None
            and child.fork.joined_before_turn == run.turn + 1
            and child.id in self._runs
            for child in self._children.get(run.program.id, ())
        )

    def _program_ended(self, run: ActiveProgram) -> None:
        del self._runs[run.program.id]
        fork = run.program.fork
        if fork is None:
            if (following := next(self._backlog, None)) is not None:
                self.start(following, run.finished_ps)
            return
        parent = self._runs.get(fork.program_id)
        if parent is not None and parent.waits_for and fork.joined_before_turn == parent.turn:
            parent.waits_for -= 1
            parent.ready_ps = max(parent.ready_ps, run.finished_ps)
            if not parent.waits_for:
                self._next(parent, parent.program.turns[parent.turn - 1].tool_gap_s)


def shared_prefix(program: Program, turn: int) -> Line:
    """Of a first turn's line: what its program's prompts have in common with others'."""
    prefix = program.prefix
    if turn or prefix is None:
        return {}
    return {"system": {"id": prefix.id, "tokens": prefix.tokens}}
