"""Turns under way at a gateway, and the line that each leaves (docs/reference/run-folder.md).

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
from harness.replay.completion import as_client_sees
from harness.replay.schedule import Line

WENT_AWAY = "the client went away"
NO_PROMPT = Prompt((), (), 0)


@dataclass(slots=True, eq=False)
class ActiveTurn:
    begun: StartedTurn
    prompt: Prompt
    sent_s: float
    replica: int
    task: asyncio.Task[Any]
    """That answers it."""
    cancelled: str = WENT_AWAY
    """Why, should it be."""


class Turns:
    def __init__(
        self, servers: int, on_line: Callable[[Line], None], now_s: Callable[[], float]
    ) -> None:
        self.now_s = now_s
        self.programs = Programs()
        self._places = ServerAssignment(servers)
        self._on_line = on_line
        self._under_way: set[ActiveTurn] = set()
        self._late_s: dict[str, float] = {}

    def late(self, program_id: str, seconds: float) -> None:
        self._late_s[program_id] = seconds

    def begin(self, who: Said, model: object, prompt: Prompt = NO_PROMPT) -> ActiveTurn:
        """In the task that answers it, which is cancelled where it is given up."""
        now_s, task = self.now_s(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a turn begins in the task that answers it")
        begun = self.programs.begin(who, prompt, now_s)
        program = begun.program
        program.model = model or program.model
        program.replica = self._places.replica_of(program.job_id, now_s)
        turn = ActiveTurn(begun, prompt, now_s, program.replica, task)
        self._under_way.add(turn)
        for forgotten in self.programs.forgotten():
            self._left(forgotten)
        return turn

    def over(self, turn: ActiveTurn, finished_s: float, error: str | None, seen: Line) -> None:
        """`seen`: the fields of its line that say what was asked and answered."""
        program, index, gap_s = turn.begun
        self._under_way.discard(turn)
        if error is None or error != turn.cancelled:
            self._places.served(turn.replica, self.now_s(), well=error is None)
        self.programs.over(program, finished_s)
        late_s = 0.0 if index else self._late_s.pop(program.id, 0.0)
        self._on_line(
            {
                "program_id": program.id,
                "turn": index,
                "replica": turn.replica,
                "job_id": program.job_id,
                "scheduled_at_s": turn.sent_s - late_s,
                **seen,
                "gap_s": gap_s,
                "gap_provenance": "measured" if index else None,
                "wait_s": 0.0,
                "error": error,
            }
        )

    async def give_up(self, program_id: str, reason: str) -> None:
        """Its requests under way end with the reason; without any it is a turn of its own."""
        asked = [turn for turn in self._under_way if turn.begun.program.id == program_id]
        for turn in asked:
            turn.cancelled = reason
            turn.task.cancel()
        if asked:
            await asyncio.wait([turn.task for turn in asked])
        else:
            turn = self.begin(Said(program_id, None), None)
            self.over(turn, turn.sent_s, reason, unanswered(turn))

    def ended(self, program_id: str) -> tuple[Program, int] | None:
        """The program and the server of its last turn, unless it is not known (any more)."""
        program = self.programs.ended(program_id)
        self._late_s.pop(program_id, None)
        if program is None:
            return None
        self._left(program)
        return program, program.replica

    def _left(self, program: Program) -> None:
        """A job's place goes with its first program, and with the last that is known of it."""
        if program.job_id == program.id or not self.programs.has_job(program.job_id):
            self._places.ended(program.job_id)


def unanswered(turn: ActiveTurn) -> Line:
    nothing = as_client_sees(
        turn.sent_s,
        None,
        turn.sent_s,
        prompt_tokens=0,
        output_tokens=0,
        cached_tokens=None,
        queue_s=None,
    )
    return {**nothing, "kept_tokens": 0, "tools": []}
