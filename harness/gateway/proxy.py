"""The gateway itself: who asks, and what is done with it.

Completions are turns of a program, passed through or guided, each with a line of
docs/run-folder.md. A program ends when whoever ran it says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from harness.client import allow_many_connections, authorization, client_session
from harness.course import Line
from harness.engine_log import EngineLogs
from harness.gateway.guided import Guide, Guided
from harness.gateway.identity import BadId, Said, said
from harness.gateway.passing import Passing
from harness.gateway.refusals import refusal
from harness.gateway.servers import Backend
from harness.gateway.turns import Turns

MOST_BODY_BYTES = 32 << 20
COMPLETIONS = ("chat/completions", "completions")


class Gateway:
    """`async with` it: it holds the connections to its servers."""

    def __init__(
        self,
        backends: Sequence[Backend],
        on_turn: Callable[[Line], None],
        api_key: str | None = None,
        *,
        guide: Guide | None = None,
        keeps_messages: bool = False,
        on_event: Callable[[Line], None] | None = None,
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
        self._turns = Turns(len(backends), self._note, self._now_s)

        self.runner: web.AppRunner
        """That serves it (`harness.gateway.serving`)."""
        self.only: dict[str, str] = {}
        """By name of a socket: the program whose alone it is."""

    async def __aenter__(self) -> Gateway:
        self.begin(time.monotonic())
        allow_many_connections()
        self._session = client_session(auto_decompress=False)
        behind = self._backends, self._session, self._api_key, self._turns
        self._passing = Passing(*behind, self._keeps_messages)
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
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[_as_openai])
        for prefix in ("", "/programs/{program}"):
            app.router.add_route("*", prefix + "/v1/{path:.+}", self._handle)
        app.router.add_delete("/programs/{program}", self._end)
        app.router.add_get("/health", _healthy)
        return app

    def late(self, program_id: str, seconds: float) -> None:
        """Its first turn was due so much earlier than it comes."""
        self._turns.late(program_id, seconds)

    async def gave_up(self, program_id: str, reason: str) -> None:
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
                async with self._session.post(
                    f"{backend.url}/v1/completions", data=told, headers=headers
                ) as answer:
                    await answer.read()

    async def _end(self, request: web.Request) -> web.Response:
        if (refused := self._anothers(request)) is not None:
            return refused
        await self.end(request.match_info["program"])
        return web.Response(status=204)

    def _anothers(self, request: web.Request) -> web.Response | None:
        """The refusal of a program that comes by another's own socket."""
        only = self._only(request)
        if only is None or request.match_info.get("program", only) == only:
            return None
        return refusal(403, f"this way to the gateway is for program {only} alone")

    def _only(self, request: web.Request) -> str | None:
        name = request.transport and request.transport.get_extra_info("sockname")
        return self.only.get(name) if isinstance(name, str) else None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if request.method != "POST" or path not in COMPLETIONS:
            return await self._passing.other(request, path)
        raw = await request.read()
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as bad:
            return refusal(400, f"We could not parse the JSON body of your request: {bad}")
        if not isinstance(body, dict):
            return refusal(400, "The JSON body of your request must be an object.")
        if (refused := self._anothers(request)) is not None:
            return refused
        in_path, only = request.match_info.get("program"), self._only(request)
        try:
            who = said(in_path, request.headers, body) if only is None else Said(only, None)
        except BadId as bad:
            return refusal(400, str(bad))
        return await self._complete(request, path, body, raw, who)

    def _note(self, line: Line) -> None:
        self._on_turn(line if self._logs is None else self._logs.completed(line))

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
