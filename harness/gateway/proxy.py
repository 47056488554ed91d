"""Handles the gateway's HTTP requests, and starts and ends programs.

A completion is a turn of a program, forwarded or guided, and results in a `TurnRecord`
(docs/reference/run-folder.md). A program ends when `end` or `abandon` is called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from harness.console import print_message
from harness.gateway.access import Access, admitted_as, refusal
from harness.gateway.client_request import (
    Caller,
    ended_program,
    identify_caller,
    parse_body,
    read_body,
)
from harness.gateway.forwarding import APIS, Forwarding
from harness.gateway.guided import PATHS, Guide, Guided
from harness.gateway.turns import Turns
from harness.replay.engine_events import EngineLogs
from harness.replay.http import allow_many_connections, client_session
from harness.replay.identity import SESSION_ENDS, SessionEnd
from harness.replay.live_router import LiveRouter
from harness.replay.live_server import LiveServer
from harness.replay.load_reports import LoadReports, replicas_of
from servers.basics.errors import InvalidProgramId, InvalidRouter
from servers.records.turns import EventRecord, TurnRecord
from servers.routers.base import Replica
from servers.routers.runner import BuildRouter
from servers.routers.sticky import Sticky
from traces.token_counts import TokenCounter

MAX_BODY_BYTES = 32 << 20
HEALTH = "/health"


class Gateway:
    """An async context manager that opens and closes the connections to the servers."""

    def __init__(
        self,
        backends: Sequence[LiveServer],
        on_turn: Callable[[TurnRecord], None],
        api_key: str | None = None,
        *,
        guide: Guide | None = None,
        keeps_messages: bool = False,
        on_event: Callable[[EventRecord], None] | None = None,
        access: Access | None = None,
        router: BuildRouter = Sticky,
        counter: TokenCounter | None = None,
    ) -> None:
        """`guide`: reply with recorded answers. `keeps_messages`: record the messages of turns.
        `on_event`: called with each event of the servers' event files. `router`: distributes the
        turns over the servers. `counter`: counts the tokens that a server does not report."""
        self._backends = backends
        self._on_turn = on_turn
        self._api_key = api_key
        self._guide = guide
        self._keeps_messages = keeps_messages
        self._counter = counter
        self._on_event = on_event
        self._logs: EngineLogs | None = None
        self._router = LiveRouter(router, replicas_of(backends), self._now_s, self._report)
        self._turns = Turns(self._router, self._turn_ended, self._now_s)
        self._background: set[asyncio.Task[None]] = set()

        self.runner: web.AppRunner
        """The runner that serves the gateway, set by `harness.gateway.serving`."""
        self.access = access or Access()

    async def __aenter__(self) -> Gateway:
        self.set_origin(time.monotonic())
        allow_many_connections()
        self._session = client_session()
        self._loads = LoadReports(self._session, self._backends, self._api_key, self._now_s)
        self._routing = asyncio.create_task(self._run_router())
        common = self._backends, self._session, self._api_key, self._turns
        strips_key = self.access.strips_client_key
        self._forwarding = Forwarding(*common, self._keeps_messages, strips_key, self._counter)
        self._complete, self._paths = self._forwarding.complete, frozenset(APIS)
        if self._guide is not None:
            self._complete, self._paths = Guided(self._guide, *common).complete, PATHS
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = {self._routing, *self._background}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
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
        for end in SESSION_ENDS:
            app.router.add_post(end.path, partial(self._end_named, end))
        app.router.add_get(HEALTH, _healthy)
        return app

    @property
    def router_error(self) -> InvalidRouter | None:
        """The first error of the router, which broke its contract."""
        return self._turns.router_error

    def set_lateness(self, program_id: str, seconds: float) -> None:
        self._turns.set_lateness(program_id, seconds)

    async def abandon(self, program_id: str, reason: str) -> None:
        """End a program that is killed or has crashed. Its last record has `reason` as its error:
        the active turn's record, or else an additional one.
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
        program, replicas = removed
        reports = []
        for backend in map(self._backends.__getitem__, replicas):
            model = program.model if backend.tagged else None
            reports.append(backend.report_end(self._session, program_id, model, self._api_key))
        await asyncio.gather(*reports)
        for side in program.sides.values():
            await self.end(side)

    async def _run_router(self) -> None:
        """Run the router while the gateway serves. Its errors fail the turns that it holds back."""
        while True:
            try:
                await self._router.run()
            except InvalidRouter as error:
                self._turns.router_error = self._turns.router_error or error
                print_message(str(error))

    async def _report(self, replica: Replica) -> None:
        await self._loads(replica)

    async def _end(self, request: web.Request) -> web.Response:
        await self.end(request.match_info["program"])
        return web.Response(status=204)

    async def _end_named(self, end: SessionEnd, request: web.Request) -> web.Response:
        """End the program that the body names: the end-of-session endpoint of other routers."""
        try:
            program_id = ended_program(parse_body(await read_body(request)), end.field)
        except (orjson.JSONDecodeError, InvalidProgramId) as bad:
            return refusal(400, str(bad))
        if program_id is None:
            return refusal(400, f"{end.path} needs the field {end.field}")
        if admitted_as() not in (None, program_id):
            return refusal(403, f"this socket or key belongs to program {admitted_as()}")
        known = program_id in self._turns.programs
        await self.end(program_id)
        return web.json_response({end.field: program_id, "released": known})

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
        if request.method != "POST" or path not in self._paths:
            return await self._forwarding.other(request, path, self._paths)
        raw = await read_body(request)
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
                else Caller(program, None, is_agent=True)
            )
        except InvalidProgramId as bad:
            return refusal(400, str(bad))
        response = await self._complete(request, path, body, raw, caller)
        if caller.is_final and caller.program_id is not None:
            self._start(self.end(caller.program_id))
        return response

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; the gateway cancels it when it closes."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

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
