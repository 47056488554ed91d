"""Guided replay: real agents with real tools, whose answers come from recorded programs.

An agent's k-th request as program p is the k-th turn of the recorded program p. The engine does
that turn's work as in live replay (token mode: docs/design/live-replay.md), and the agent gets the
recorded answer when the engine's last token is there. A program stops at a failed turn.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from harness.gateway.identity import Said
from harness.gateway.recorded import Recorded
from harness.gateway.refusals import refusal
from harness.gateway.servers import Backend
from harness.gateway.turns import ActiveTurn, Turns
from harness.replay.completion import Answer, completion_body, measure
from harness.replay.http import FAILURES, ask, authorization, known_keys, reason
from harness.replay.schedule import shared_prefix
from harness.replay.token_prompts import Conversation, Prompts
from servers.errors import InvalidInput
from traces import Program, Turn

JSON = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(slots=True)
class _Course:
    """A recorded program and how far its agent is."""

    program: Program
    conversation: Conversation
    index: int = 0
    """Of the next turn."""
    stopped: str | None = None
    under_way: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Turns of a program follow each other: a second request waits."""

    def over(self) -> str | None:
        """Why there is no further turn."""
        if self.stopped is not None:
            return f"the recorded program stopped at turn {self.index}: {self.stopped}"
        if self.index == len(self.program.turns):
            return f"the recorded program has no turn {self.index}"
        return None


class Guide:
    """Recorded programs and, of those under way, their contexts."""

    def __init__(self, programs: Sequence[Program], vocabulary: range, seed: int) -> None:
        """`vocabulary`: the token ids that prompts may hold. Raises a ValueError for a program
        whose messages are not recorded."""
        if silent := next((program for program in programs if not program.messages), None):
            raise InvalidInput(
                f"program {silent.id}: its trace has no messages, and so no answers for its agent; "
                "give trajectories, or a trace recorded with bench record --messages"
            )
        self._programs = {program.id: program for program in programs}
        self._prompts = Prompts(vocabulary, seed)
        self._courses: dict[str, _Course] = {}

    def course(self, program_id: str) -> _Course | None:
        program = self._programs.get(program_id)
        if program is not None and program_id not in self._courses:
            self._courses[program_id] = _Course(program, self._prompts.conversation(program))
        return self._courses.get(program_id)

    def ended(self, program_id: str) -> None:
        """Its next request is another run's first."""
        self._courses.pop(program_id, None)


class Guided:
    def __init__(
        self,
        guide: Guide,
        backends: Sequence[Backend],
        session: aiohttp.ClientSession,
        api_key: str | None,
        turns: Turns,
    ) -> None:
        self._guide = guide
        self._backends = backends
        self._session = session
        self._api_key = api_key
        self._secrets = known_keys(api_key)
        self._turns = turns

    async def complete(
        self, request: web.Request, path: str, body: dict[str, Any], raw: bytes, who: Said
    ) -> web.StreamResponse:
        if who.program_id is None:
            return refusal(400, "guided replay needs to know the program: /programs/<id>/v1/…")
        course = self._guide.course(who.program_id)
        if course is None:
            return refusal(400, f"no recorded program is called {who.program_id}")
        async with course.under_way:
            if (none := course.over()) is not None:
                return refusal(400, none)
            index = course.index
            await self._turn(course, who, body.get("model"))
            if course.stopped is not None:
                return refusal(502, course.stopped, "api_error")
        chat = path.startswith("chat")
        recorded = Recorded(course.program, index, body, chat=chat, created_s=time.time())
        return await _told(request, body, recorded)

    async def _turn(self, course: _Course, who: Said, model: Any) -> None:
        """The engine's work for the next turn of the course."""
        program, index = course.program, course.index
        turn = program.turns[index]
        under_way = self._turns.begin(who, model)
        url = f"{self._backends[under_way.replica].url}/v1/completions"
        headers = {**JSON, **authorization(self._api_key)}
        answer = Answer(under_way.sent_s, secrets=self._secrets)
        try:
            prompt, is_last = course.conversation.prompt(turn), index == len(program.turns) - 1
            sent = io.BytesIO(completion_body(model, prompt, turn, program.id, index, is_last))
            await ask(self._session, url, sent, answer, self._turns.now_s, headers)
            answer.check(turn)
            course.index += 1
            course.conversation.answered(answer.ids)
        except asyncio.CancelledError:
            course.stopped = under_way.cancelled
            raise
        except FAILURES as failure:
            course.stopped = reason(failure, url, answer)
        finally:
            self._over(under_way, course, turn, answer)

    def _over(self, under_way: ActiveTurn, course: _Course, turn: Turn, answer: Answer) -> None:
        finished_s = answer.last_byte_at_s if course.stopped is None else self._turns.now_s()
        record = under_way.record
        measure(record, turn, answer, finished_s)
        record.kept_tokens, record.tools = turn.kept_tokens, turn.tools
        record.system = shared_prefix(course.program, under_way.begun.turn)
        self._turns.over(under_way, finished_s, course.stopped)


async def _told(
    request: web.Request, body: Mapping[str, Any], recorded: Recorded
) -> web.StreamResponse:
    if body.get("stream") is not True:
        return web.json_response(recorded.whole())
    options = body.get("stream_options")
    with_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in recorded.events(with_usage):
        await response.write(event)
    await response.write_eof()
    return response
