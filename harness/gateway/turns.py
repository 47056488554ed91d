"""Active turns at a gateway, and the `TurnRecord` of each (docs/reference/run-folder.md).

Times in seconds on the gateway's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.gateway.conversations import Prompt
from harness.gateway.identity import Said
from harness.gateway.programs import Program, Programs, StartedTurn
from harness.gateway.servers import ServerAssignment
from servers.records import TurnRecord

WENT_AWAY = "the client went away"
NO_PROMPT = Prompt((), (), 0)


@dataclass(slots=True, eq=False)
class ActiveTurn:
    begun: StartedTurn
    record: TurnRecord
    """The record of a turn without an answer; whoever serves the turn fills it in."""
    prompt: Prompt
    sent_s: float
    replica: int
    task: asyncio.Task[Any]
    """The task that answers the request."""
    cancelled: str = WENT_AWAY
    """The reason if the task is cancelled."""


class Turns:
    def __init__(
        self, servers: int, on_turn: Callable[[TurnRecord], None], now_s: Callable[[], float]
    ) -> None:
        self.now_s = now_s
        self.programs = Programs()
        self._places = ServerAssignment(servers)
        self._on_turn = on_turn
        self._active: set[ActiveTurn] = set()
        self._late_s: dict[str, float] = {}

    def late(self, program_id: str, seconds: float) -> None:
        self._late_s[program_id] = seconds

    def begin(self, who: Said, model: object, prompt: Prompt = NO_PROMPT) -> ActiveTurn:
        """Start a turn. Call it in the task that answers the request; `give_up` cancels this
        task."""
        now_s, task = self.now_s(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a turn begins in the task that answers it")
        begun = self.programs.begin(who, prompt, now_s)
        program = begun.program
        program.model = model or program.model
        program.replica = self._places.replica_of(program.job_id, now_s)
        record = TurnRecord(
            program_id=program.id,
            turn=begun.turn,
            replica=program.replica,
            job_id=program.job_id,
            scheduled_at_s=now_s,
            sent_at_s=now_s,
            finished_at_s=now_s,
            prompt_tokens=0,
            output_tokens=0,
            kept_tokens=0,
            tools=(),
            gap_s=begun.gap_s,
            gap_provenance="measured" if begun.turn else None,
            wait_s=0.0,
        )
        turn = ActiveTurn(begun, record, prompt, now_s, program.replica, task)
        self._active.add(turn)
        for forgotten in self.programs.forgotten():
            self._left(forgotten)
        return turn

    def over(self, turn: ActiveTurn, finished_s: float, error: str | None) -> None:
        program, index, _ = turn.begun
        self._active.discard(turn)
        if error is None or error != turn.cancelled:
            self._places.served(turn.replica, self.now_s(), well=error is None)
        self.programs.over(program, finished_s)
        late_s = 0.0 if index else self._late_s.pop(program.id, 0.0)
        turn.record.scheduled_at_s = turn.sent_s - late_s
        turn.record.error = error
        self._on_turn(turn.record)

    async def give_up(self, program_id: str, reason: str) -> None:
        """End the program's active turns with this error; if there is none, record a turn that
        failed with it."""
        active = [turn for turn in self._active if turn.begun.program.id == program_id]
        for turn in active:
            turn.cancelled = reason
            turn.task.cancel()
        if active:
            await asyncio.wait([turn.task for turn in active])
        else:
            turn = self.begin(Said(program_id, None), None)
            self.over(turn, turn.sent_s, reason)

    def ended(self, program_id: str) -> tuple[Program, int] | None:
        """The program and the replica of its last turn; None for an unknown program."""
        program = self.programs.ended(program_id)
        self._late_s.pop(program_id, None)
        if program is None:
            return None
        self._left(program)
        return program, program.replica

    def _left(self, program: Program) -> None:
        """Release the job's server when its root program or its last known program leaves."""
        if program.job_id == program.id or not self.programs.has_job(program.job_id):
            self._places.ended(program.job_id)
