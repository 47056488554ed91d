"""Handles the gateway's HTTP requests, and starts and ends programs.

A completion is a turn of a program, forwarded or guided, and results in a `TurnRecord`
(docs/reference/run-folder.md). A program ends when `end` or `abandon` is called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from harness.gateway.access import Access, admitted_as, refusal
from harness.gateway.client_request import Caller, identify_caller, parse_body
from harness.gateway.forwarding import Forwarding
from harness.gateway.guided import Guide, Guided
from harness.gateway.servers import Backend
from harness.gateway.turns import Turns
from harness.replay.engine_events import EngineLogs
from harness.replay.http import allow_many_connections, authorization, client_session
from servers.errors import InvalidProgramId
from servers.records import EventRecord, TurnRecord

MAX_BODY_BYTES = 32 << 20
END_TIMEOUT_S = 5.0
"""Timeout of the request that reports the end of a program to its server. A failure is ignored."""
HEALTH = "/health"
COMPLETIONS = ("chat/completions", "completions")


class Gateway:
    """An async context manager that opens and closes the connections to the servers."""

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
        """`guide`: reply with recorded answers. `keeps_messages`: record the messages of turns.
        `on_event`: called with each event of the servers' event files."""
        self._backends = backends
        self._on_turn = on_turn
        self._api_key = api_key
        self._guide = guide
        self._keeps_messages = keeps_messages
        self._on_event = on_event
        self._logs: EngineLogs | None = None
        self._turns = Turns(len(backends), self._turn_ended, self._now_s)

        self.runner: web.AppRunner
        """The runner that serves the gateway, set by `harness.gateway.serving`."""
        self.access = access or Access()

    async def __aenter__(self) -> Gateway:
        self.set_origin(time.monotonic())
        allow_many_connections()
        self._session = client_session()
        common = self._backends, self._session, self._api_key, self._turns
        self._forwarding = Forwarding(*common, self._keeps_messages, self.access.strips_client_key)
        self._complete = self._forwarding.complete
        if self._guide is not None:
            self._complete = Guided(self._guide, *common).complete
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        if self._logs is not None:
            self._logs.close()

    def set_origin(self, origin_s: float) -> None:
        """Set time 0 of all records, on the machine's monotonic clock. Call it before the first
        request; the default is the time when the gateway was opened."""
        if self._logs is not None:
            self._logs.close()
        self.origin_s = origin_s
        self._logs = EngineLogs([b.events for b in self._backends], origin_s, self._on_event)

    def app(self) -> web.Application:
        layers = [_as_openai, self._admitted]
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=layers)
        for prefix in ("", "/programs/{program}"):
            app.router.add_route("*", prefix + "/v1/{path:.+}", self._handle)
        app.router.add_delete("/programs/{program}", self._end)
        app.router.add_get(HEALTH, _healthy)
        return app

    def set_lateness(self, program_id: str, seconds: float) -> None:
        """Set the lateness of the program's first turn."""
        self._turns.set_lateness(program_id, seconds)

    async def abandon(self, program_id: str, reason: str) -> None:
        """End a program that is killed or has crashed. Its last record has `reason` as its error:
        the active turn's, or else that of an additional turn.
        """
        await self._turns.abandon(program_id, reason)
        await self.end(program_id)

    async def end_all(self) -> None:
        """End all programs. Call it when no client is left."""
        for program_id in self._turns.programs.ids():
            await self.end(program_id)

    async def end(self, program_id: str) -> None:
        """End a program. The server releases its pins, and the next request with this id starts a
        new program."""
        if self._guide is not None:
            self._guide.remove(program_id)
        removed = self._turns.remove_program(program_id)
        if removed is None:
            return
        program, replica = removed
        backend = self._backends[replica]
        if backend.tagged and program.model is not None:
            body = {"model": program.model, "prompt": [0], "max_tokens": 1}
            content = orjson.dumps(body | {"vllm_xargs": {"ended": program_id}})
            headers = {"Content-Type": "application/json", **authorization(self._api_key)}
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with (
                    asyncio.timeout(END_TIMEOUT_S),
                    self._session.post(
                        f"{backend.url}/v1/completions",
                        data=content,
                        headers=headers,
                        allow_redirects=False,
                    ) as answer,
                ):
                    await answer.content.readany()

    async def _end(self, request: web.Request) -> web.Response:
        await self.end(request.match_info["program"])
        return web.Response(status=204)

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check access before the body is read. The health check is always allowed."""
        if request.path == HEALTH:
            return await handler(request)
        if (refused := self.access.admit(request)) is not None:
            return refused
        with self.access.active_request():
            return await handler(request)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if request.method != "POST" or path not in COMPLETIONS:
            return await self._forwarding.other(request, path)
        raw = await request.read()
        try:
            body = parse_body(raw)
        except orjson.JSONDecodeError as bad:
            return refusal(400, f"We could not parse the JSON body of your request: {bad}")
        if not isinstance(body, dict):
            return refusal(400, "The JSON body of your request must be an object.")
        in_path, program = request.match_info.get("program"), admitted_as()
        try:
            caller = (
                identify_caller(in_path, request.headers, body)
                if program is None
                else Caller(program, None)
            )
        except InvalidProgramId as bad:
            return refusal(400, str(bad))
        return await self._complete(request, path, body, raw, caller)

    def _turn_ended(self, record: TurnRecord) -> None:
        if self._logs is not None:
            self._logs.complete(record)
        self._on_turn(record)

    def _now_s(self) -> float:
        return time.monotonic() - self.origin_s


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


@web.middleware
async def _as_openai(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert aiohttp's own errors to the format of OpenAI's API."""
    try:
        return await handler(request)
    except web.HTTPException as refused:
        if refused.status == 404:
            message = f"Invalid URL ({request.method} {request.path})"
        elif refused.status == 413:
            message = f"The body of your request is larger than {MAX_BODY_BYTES >> 20} MiB."
        else:
            message = refused.reason
        return refusal(refused.status, message)
