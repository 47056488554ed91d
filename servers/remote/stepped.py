"""What engines in virtual time share that step the scheduler of a serving engine: their clock, and
the turns that are submitted for later."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from servers.policies.runner import EngineTurn
from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.sim import EngineUsage, Limits, Sequence, Submission, refuse_unfit


class SteppedEngine(ABC):
    """Submit turns, then call `run`. `on_end` may submit more turns, for its time or later."""

    trees = 1
    """Number of trees of contents."""

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        on_end: Callable[[Sequence], None],
        on_event: Callable[[EventRecord], None] | None,
    ) -> None:
        self.profile = profile
        self.now_ps = self.steps = self.strides = 0
        self._step_tokens = limits.step_tokens
        self._on_end, self._on_event = on_end, on_event
        self._due: list[tuple[int, bool, int, Sequence]] = []
        """Turns by the time at which they are due; at equal times, first turns of `_programs` come
        first."""
        self._programs: Iterator[object] = iter(())
        self._submits_first_turn = False
        """Whether the next item of `_programs` is calling `submit`."""
        self._serial = 0
        self._stopped = False

    def submit(self, submission: Submission, at_ps: int) -> Sequence:
        refuse_unfit(submission, self.profile, self._step_tokens)
        sequence = Sequence(submission, at_ps)
        self._push(at_ps, sequence)
        return sequence

    def take_back(self, sequence: Sequence) -> None:
        """Forget a turn that has not arrived."""
        self._due = [event for event in self._due if event[3] is not sequence]
        heapq.heapify(self._due)

    def stop(self) -> None:
        """End `run` early, after the current step. Turns that have not ended then are dropped."""
        self._stopped = True

    @abstractmethod
    def end_program(self, program_id: str) -> None: ...

    @abstractmethod
    def usage(self) -> EngineUsage: ...

    @abstractmethod
    def run(self, programs: Iterable[object] = ()) -> None:
        """Run until every submitted turn has ended, or until `stop`. `programs` is advanced as by
        `servers.sim.Engine`."""

    @abstractmethod
    def _take(self, sequence: Sequence) -> None:
        """Take a turn that is due."""

    def _emit(self, t_s: float, event: str, turn: EngineTurn, fields: dict[str, Any]) -> None:
        if self._on_event is not None:
            program_id, index = turn.view.program_id, turn.view.index
            self._on_event(
                EventRecord(t=t_s, event=event, program_id=program_id, turn=index, **fields)
            )

    def _take_due(self, until_ps: int) -> None:
        while self._due and self._due[0][0] <= until_ps:
            _, later, _, sequence = heapq.heappop(self._due)
            self._take(sequence)
            if not later:
                self._begin_next()

    def _begin(self, programs: Iterable[object]) -> None:
        self._programs = iter(programs)
        self._begin_next()

    def _begin_next(self) -> None:
        self._submits_first_turn = True
        next(self._programs, None)
        self._submits_first_turn = False

    def _push(self, at_ps: int, sequence: Sequence) -> None:
        self._serial += 1
        event = (at_ps, not self._submits_first_turn, self._serial, sequence)
        heapq.heappush(self._due, event)
