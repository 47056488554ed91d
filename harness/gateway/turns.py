"""Active turns at a gateway, and the `TurnRecord` of each (docs/reference/run-folder.md).

Times in seconds on the gateway's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.gateway.client_request import Caller
from harness.gateway.conversations import Prompt
from harness.gateway.programs import Program, Programs, StartedTurn
from harness.gateway.servers import ServerAssignment
from servers.records import TurnRecord

CLIENT_DISCONNECTED = "the client disconnected"
NO_PROMPT = Prompt((), (), 0)


@dataclass(slots=True, eq=False)
class ActiveTurn:
    started: StartedTurn
    record: TurnRecord
    """Has no data of the answer until `Forwarding` or `Guided` adds them."""
    prompt: Prompt
    sent_s: float
    replica: int
    task: asyncio.Task[Any]
    """The task that answers the request."""
    cancelled: str = CLIENT_DISCONNECTED
    """The turn's error if the task is cancelled."""


class Turns:
    def __init__(
        self, servers: int, on_turn: Callable[[TurnRecord], None], now_s: Callable[[], float]
    ) -> None:
        self.now_s = now_s
        self.programs = Programs()
        self._servers = ServerAssignment(servers)
        self._on_turn = on_turn
        self._active: set[ActiveTurn] = set()
        self._late_s: dict[str, float] = {}

    def set_lateness(self, program_id: str, seconds: float) -> None:
        self._late_s[program_id] = seconds

    def start(self, caller: Caller, model: object, prompt: Prompt = NO_PROMPT) -> ActiveTurn:
        """Start a turn. Call it in the task that answers the request, which `abandon` cancels."""
        now_s, task = self.now_s(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a turn must be started in the task that answers it")
        started = self.programs.start_turn(caller, prompt, now_s)
        program = started.program
        program.model = model or program.model
        program.replica = self._servers.replica_of(program.job_id, now_s)
        record = TurnRecord(
            program_id=program.id,
            turn=started.turn,
            replica=program.replica,
            job_id=program.job_id,
            scheduled_at_s=now_s,
            sent_at_s=now_s,
            finished_at_s=now_s,
            prompt_tokens=0,
            output_tokens=0,
            kept_tokens=0,
            tools=(),
            gap_s=started.gap_s,
            gap_provenance="measured" if started.turn else None,
            wait_s=0.0,
        )
        turn = ActiveTurn(started, record, prompt, now_s, program.replica, task)
        self._active.add(turn)
        for evicted in self.programs.evict():
            self._release_server(evicted)
        return turn

    def end(self, turn: ActiveTurn, finished_s: float, error: str | None) -> None:
        program, index, _ = turn.started
        self._active.discard(turn)
        if error is None or error != turn.cancelled:
            self._servers.turn_ended(turn.replica, self.now_s(), succeeded=error is None)
        self.programs.end_turn(program, finished_s)
        late_s = 0.0 if index else self._late_s.pop(program.id, 0.0)
        turn.record.scheduled_at_s = turn.sent_s - late_s
        turn.record.error = error
        self._on_turn(turn.record)

    async def abandon(self, program_id: str, reason: str) -> None:
        """End the program's active turns with this error. If there are none, record a failed turn
        with it."""
        active = [turn for turn in self._active if turn.started.program.id == program_id]
        for turn in active:
            turn.cancelled = reason
            turn.task.cancel()
        if active:
            await asyncio.wait([turn.task for turn in active])
        else:
            turn = self.start(Caller(program_id, None), None)
            self.end(turn, turn.sent_s, reason)

    def remove_program(self, program_id: str) -> tuple[Program, int] | None:
        """Return the program and the replica of its last turn; None for an unknown program."""
        program = self.programs.remove(program_id)
        self._late_s.pop(program_id, None)
        if program is None:
            return None
        self._release_server(program)
        return program, program.replica

    def _release_server(self, program: Program) -> None:
        """Release the job's server if this was its root program or its last known program."""
        if program.job_id == program.id or not self.programs.has_job(program.job_id):
            self._servers.release(program.job_id)
