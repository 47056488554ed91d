"""What engines in virtual time share that step the scheduler of a serving engine: their clock, and
the turns that are submitted for later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from servers.policies.runner import EngineTurn
from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.sim import EngineUsage, Limits, Sequence, Submission, refuse_unfit
from servers.sim.due import DueTurns


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
        self._due = DueTurns(profile.request_token_ps)
        self._stopped = False

    def submit(self, submission: Submission, at_ps: int) -> Sequence:
        refuse_unfit(submission, self.profile, self._step_tokens)
        sequence = Sequence(submission, at_ps)
        self._due.send(at_ps, sequence)
        return sequence

    def take_back(self, sequence: Sequence) -> None:
        """Forget a turn that has not arrived."""
        self._due.take_back(sequence)

    def stop(self) -> None:
        """End `run` early, after the current step. Turns that have not ended then are dropped."""
        self._stopped = True

    @abstractmethod
    def end_program(self, program_id: str) -> None: ...

    @abstractmethod
    def usage(self) -> EngineUsage: ...

    @abstractmethod
    def run(self, programs: Iterable[object] = ()) -> None:
        """As `servers.sim.Engine.run`."""

    def _emit(self, t_s: float, event: str, turn: EngineTurn, fields: dict[str, Any]) -> None:
        if self._on_event is not None:
            program_id, index = turn.view.program_id, turn.view.index
            self._on_event(
                EventRecord(t=t_s, event=event, program_id=program_id, turn=index, **fields)
            )
