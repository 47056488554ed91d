"""Active turns at a gateway, and the `TurnRecord` of each (docs/reference/run-folder.md).

Times in seconds on the gateway's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from harness.gateway.client_request import Caller
from harness.gateway.conversations import DigestedPrompt
from harness.gateway.programs import GatewayProgram, GatewayPrograms, StartedTurn
from harness.replay.live_router import LiveRouter
from servers.basics.errors import InvalidRouter
from servers.records.turns import TurnRecord
from servers.routers.base import RoutedTurn, Runs

CLIENT_DISCONNECTED = "the client disconnected"
"""The error of a turn whose client left before the whole answer had arrived at the gateway."""
NO_PROMPT = DigestedPrompt((), (), 0)


@dataclass(slots=True, eq=False)
class ActiveTurn:
    started: StartedTurn
    record: TurnRecord
    """Has no data of the answer until `Forwarding` or `Guided` adds them."""
    prompt: DigestedPrompt
    sent_s: float
    task: asyncio.Task[Any]
    """The task that answers the request."""
    cancelled: str = CLIENT_DISCONNECTED
    """The turn's error if the task is cancelled."""
    routed: RoutedTurn | None = None
    """Set when the router has sent it."""

    @property
    def replica(self) -> int:
        """The server of the turn; until the router sends it, the one of the program's last turn."""
        return self.started.program.replica if self.routed is None else self.routed.replica


def client_left(request: web.Request) -> bool:
    """Return whether the client has closed its connection.

    The handler's cancellation may come later: until then, writing to the client raises the same
    errors as reading from a server.
    """
    return request.transport is None or request.transport.is_closing()


class Turns:
    def __init__(
        self,
        router: LiveRouter,
        on_turn: Callable[[TurnRecord], None],
        now_s: Callable[[], float],
    ) -> None:
        self.now_s = now_s
        self.programs = GatewayPrograms()
        self._router = router
        self.router_error: InvalidRouter | None = None
        """The first error of the router, whether or not a turn failed with it."""
        self._on_turn = on_turn
        self._active: set[ActiveTurn] = set()
        self._late_s: dict[str, float] = {}

    def set_lateness(self, program_id: str, seconds: float) -> None:
        self._late_s[program_id] = seconds

    def start(
        self, caller: Caller, model: object, prompt: DigestedPrompt = NO_PROMPT
    ) -> ActiveTurn:
        """Start a turn. Call it in the task that answers the request, which `abandon` cancels, and
        call `route` before the turn is sent to its server."""
        now_s, task = self.now_s(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a turn must be started in the task that answers it")
        started = self.programs.start_turn(caller, prompt, now_s)
        program = started.program
        program.model = model or program.model
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
        turn = ActiveTurn(started, record, prompt, now_s, task)
        self._active.add(turn)
        for evicted in self.programs.evict():
            self._router.program_ended(evicted.id)
        return turn

    async def route(
        self, turn: ActiveTurn, prompt_tokens: int | None = None, is_last: bool | None = None
    ) -> None:
        """Wait until the router sends the turn to `turn.replica`. Raises InvalidRouter.

        `prompt_tokens`: if the length is known, and the contents of the prompt are not.
        """
        program, prompt = turn.started.program, turn.prompt
        runs: Runs = ()
        if self._router.router.needs_runs and prompt_tokens is None:
            runs = runs_of_prompt(prompt)
            prompt_tokens = runs[-1][1] if runs else 0
        elif prompt_tokens is None:
            prompt_tokens = estimated_tokens(program, prompt)
        routed = self._router.turn(program.id, program.job_id, prompt_tokens, runs, is_last)
        try:
            held_s = await self._router.route(routed)
        except InvalidRouter as error:
            self.router_error = self.router_error or error
            raise
        turn.routed = routed
        turn.record.replica = program.replica = routed.replica
        if len(self._router.replicas) > 1:
            turn.record.held_s = held_s

    def end(self, turn: ActiveTurn, finished_s: float, error: str | None) -> None:
        program, index, _ = turn.started
        self._active.discard(turn)
        if (routed := turn.routed) is not None:
            routed.prompt_tokens = turn.record.prompt_tokens or routed.prompt_tokens
            routed.output_tokens = turn.record.output_tokens or 0
            routed.cached_tokens = turn.record.device_hit_tokens or 0
            cancelled = error is not None and error == turn.cancelled
            self._router.finished(routed, succeeded=None if cancelled else error is None)
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

    def remove_program(self, program_id: str) -> tuple[GatewayProgram, list[int]] | None:
        """Return the program and the replicas that served it; None for an unknown program."""
        program = self.programs.remove(program_id)
        self._late_s.pop(program_id, None)
        if program is None:
            return None
        return program, self._router.program_ended(program_id)


CHARS_PER_TOKEN = 4.0
"""Used until the server has counted the tokens of a turn of the program."""


def estimated_tokens(program: GatewayProgram, prompt: DigestedPrompt) -> int:
    """Return the tokens of the last turn that the prompt repeats, as the server counted them, and
    the rest by the characters per token of that turn."""
    if not prompt.ends:
        return 0
    length, before = prompt.ends[-1], program.prompt
    if before is None or not program.prompt_tokens or not program.prompt_pieces:
        return max(1, round(length * _tokens_per_unit(prompt)))
    common, last = before.shared(prompt), before.ends[program.prompt_pieces - 1]
    if common >= len(before) and not program.reasoned:
        repeated, tokens = before.ends[-1], float(program.prompt_tokens + program.output_tokens)
    else:
        pieces = min(common, program.prompt_pieces)
        repeated = before.ends[pieces - 1] if pieces else 0
        tokens = program.prompt_tokens * repeated / last
    return max(1, round(tokens + (length - repeated) * program.prompt_tokens / last))


def runs_of_prompt(prompt: DigestedPrompt) -> Runs:
    """Return a run for each piece. The characters per token are always the same here, because runs
    of different turns are compared."""
    per_unit = _tokens_per_unit(prompt)
    pairs = zip(prompt.digests, prompt.ends, strict=True)
    return tuple((digest, max(1, round(end * per_unit))) for digest, end in pairs)


def _tokens_per_unit(prompt: DigestedPrompt) -> float:
    return 1.0 if prompt.in_tokens else 1 / CHARS_PER_TOKEN
