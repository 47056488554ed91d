"""The gateway itself: who asks, and what is done with it.

Completions are turns of a program, passed through or guided, each with a line of
docs/reference/run-folder.md. A program ends when whoever ran it says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from harness.gateway.access import Access, admitted_as
from harness.gateway.bodies import parsed
from harness.gateway.guided import Guide, Guided
from harness.gateway.identity import Said, said
from harness.gateway.passing import Passing
from harness.gateway.refusals import refusal
from harness.gateway.servers import Backend
from harness.gateway.turns import Turns
from harness.replay.engine_events import EngineLogs
from harness.replay.http import allow_many_connections, authorization, client_session
from servers.errors import InvalidProgramId
from servers.records import EventRecord, TurnRecord

MOST_BODY_BYTES = 32 << 20
TOLD_WITHIN_S = 5.0
"""A server that hangs is not waited for: nothing depends on its knowing that a program is over."""
HEALTH = "/health"
COMPLETIONS = ("chat/completions", "completions")


class Gateway:
    """`async with` it: it holds the connections to its servers."""

    def __init__(
        self,
        backends: Sequence[Backend],
        on_turn: Callable[[TurnRecord], None],
        api_key: str | None = None,
        *,
        guide: Guide | None = None,
        keeps_messages: bool = False,
        on_event: Callable[[EventRecord], None] | None = None,
        access: Access | None = None,
    ) -> None:
        """`guide`: answers come from recorded programs. `keeps_messages`: lines hold what was said.
        `on_event`: takes what the servers' event files say."""
        self._backends = backends
        self._on_turn = on_turn
        self._api_key = api_key
        self._guide = guide
        self._keeps_messages = keeps_messages
        self._on_event = on_event
        self._logs: EngineLogs | None = None
        self._turns = Turns(len(backends), self._turn_ended, self._now_s)

        self.runner: web.AppRunner
        """That serves it (`harness.gateway.serving`)."""
        self.access = access or Access()

    async def __aenter__(self) -> Gateway:
        self.begin(time.monotonic())
        allow_many_connections()
        self._session = client_session()
        behind = self._backends, self._session, self._api_key, self._turns
        keeps = self._keeps_messages
        self._passing = Passing(*behind, keeps, hides_key=self.access.hides_key)
        self._complete = self._passing.complete
        if self._guide is not None:
            self._complete = Guided(self._guide, *behind).complete
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        if self._logs is not None:
            self._logs.close()

    def begin(self, origin_s: float) -> None:
        """Time 0 of all lines, on the machine's monotonic clock: before the first request, where it
        is not when the gateway was entered."""
        if self._logs is not None:
            self._logs.close()
        self.origin_s = origin_s
        self._logs = EngineLogs([b.events for b in self._backends], origin_s, self._on_event)

    def app(self) -> web.Application:
        layers = [_as_openai, self._admitted]
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=layers)
        for prefix in ("", "/programs/{program}"):
            app.router.add_route("*", prefix + "/v1/{path:.+}", self._handle)
        app.router.add_delete("/programs/{program}", self._end)
        app.router.add_get(HEALTH, _healthy)
        return app

    def late(self, program_id: str, seconds: float) -> None:
        """Its first turn was due so much earlier than it comes."""
        self._turns.late(program_id, seconds)

    async def abandon(self, program_id: str, reason: str) -> None:
        """Its process is being ended, or has crashed: a last line says why, then as `end`. What it
        has under way is that line, if this is called before its process is ended."""
        await self._turns.give_up(program_id, reason)
        await self.end(program_id)

    async def end_all(self) -> None:
        """Whoever asked is gone."""
        for program_id in self._turns.programs.ids():
            await self.end(program_id)

    async def end(self, program_id: str) -> None:
        """Its process is gone: its pins may go, and the next turn under this name is another
        program's first."""
        if self._guide is not None:
            self._guide.ended(program_id)
        ended = self._turns.ended(program_id)
        if ended is None:
            return
        program, replica = ended
        backend = self._backends[replica]
        if backend.tagged and program.model is not None:
            body = {"model": program.model, "prompt": [0], "max_tokens": 1}
            told = orjson.dumps(body | {"vllm_xargs": {"ended": program_id}})
            headers = {"Content-Type": "application/json", **authorization(self._api_key)}
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with (
                    asyncio.timeout(TOLD_WITHIN_S),
                    self._session.post(
                        f"{backend.url}/v1/completions",
                        data=told,
                        headers=headers,
                        allow_redirects=False,
                    ) as answer,
                ):
                    await answer.content.readany()

    async def _end(self, request: web.Request) -> web.Response:
        await self.end(request.match_info["program"])
        return web.Response(status=204)

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Before anything of its body is read. That we are up is no secret."""
        if request.path == HEALTH:
            healthy: web.StreamResponse = await handler(request)
            return healthy
        if (refused := self.access.admit(request)) is not None:
            return refused
        with self.access.under_way():
            response: web.StreamResponse = await handler(request)
            return response

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if request.method != "POST" or path not in COMPLETIONS:
            return await self._passing.other(request, path)
        raw = await request.read()
        try:
            body = parsed(raw)
        except orjson.JSONDecodeError as bad:
            return refusal(400, f"We could not parse the JSON body of your request: {bad}")
        if not isinstance(body, dict):
            return refusal(400, "The JSON body of your request must be an object.")
        in_path, only = request.match_info.get("program"), admitted_as()
        try:
            who = said(in_path, request.headers, body) if only is None else Said(only, None)
        except InvalidProgramId as bad:
            return refusal(400, str(bad))
        return await self._complete(request, path, body, raw, who)

    def _turn_ended(self, record: TurnRecord) -> None:
        if self._logs is not None:
            self._logs.complete(record)
        self._on_turn(record)

    def _now_s(self) -> float:
        return time.monotonic() - self.origin_s


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


@web.middleware
async def _as_openai(request: web.Request, handler: Any) -> web.StreamResponse:
    """What aiohttp itself refuses, in the shape that OpenAI's clients read."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except web.HTTPException as refused:
        if refused.status == 404:
            told = f"Invalid URL ({request.method} {request.path})"
        elif refused.status == 413:
            told = f"The body of your request is larger than {MOST_BODY_BYTES >> 20} MiB."
        else:
            told = refused.reason
        return refusal(refused.status, told)
