"""What the plug-in does in vLLM's API servers: it passes the programs that headers name on to the
scheduler, sends all requests of a program to the same rank of data parallelism, and refuses invalid
options before the engine starts.

In: HTTP requests, in any of the headers of `servers.identity`. Out: the same requests, with the
program's id as `X-Session-ID`, from which vLLM 0.32 sets the session of a request. vLLM calls
`register` in all of its processes, as an entry point of the group `vllm.general_plugins`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache, wraps
from typing import Any
from zlib import crc32

from servers.basics.errors import TurnstileError
from servers.identity import LAST, is_final, program_in

Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
"""As in ASGI: names in lower case."""
PACKAGE = __name__.partition(".")[0]
SESSION = b"x-session-id"
SEEN = "turnstile"
"""Marks requests whose headers are set."""


class ProgramHeaders:
    """ASGI middleware. `register` adds it, unless `VLLM_PLUGINS` leaves the plug-in out:
    `--middleware turnstile_vllm.ProgramHeaders` does the same."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and SEEN not in scope:
            headers = with_session(list(scope["headers"]))
            scope = {**scope, "headers": headers, SEEN: True}
        await self._app(scope, receive, send)


def with_session(headers: Headers) -> Headers:
    """Return the headers with the program's id as session."""
    by_name = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers[::-1]}
    program = program_in(by_name)
    if program is None:
        return headers
    session = program + LAST * is_final(by_name)
    return [
        *((name, value) for name, value in headers if name != SESSION),
        (SESSION, session.encode("latin-1")),
    ]


def register() -> None:
    """Check the options of each server that uses our scheduler, and add the middleware to it.
    Servers without our scheduler stay as they are."""
    # Only vLLM's front end has this module, and its other processes get the configuration from it.
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is None:
        return
    create = arguments.EngineArgs.create_engine_config

    @wraps(create)
    def create_checked(*args: Any, **kwargs: Any) -> Any:
        config = create(*args, **kwargs)
        if _is_ours(config.scheduler_config.scheduler_cls):
            from servers.vllm.plugin.settings import check

            try:
                check(config)
            except TurnstileError as error:
                sys.stderr.write(f"{PACKAGE}: {error}\n")
                raise SystemExit(2) from None
            _add_middleware()
            if config.parallel_config.data_parallel_size > 1:
                _keep_programs_on_their_ranks()
        return config

    arguments.EngineArgs.create_engine_config = create_checked


def _is_ours(scheduler: object) -> bool:
    name = scheduler if isinstance(scheduler, str) else getattr(scheduler, "__module__", "")
    return name.startswith(f"{PACKAGE}.")


@cache
def _add_middleware() -> None:
    """Put the middleware before all others of the applications that this process starts."""
    from fastapi import FastAPI

    build = FastAPI.build_middleware_stack
    FastAPI.build_middleware_stack = lambda app: ProgramHeaders(build(app))


@cache
def _keep_programs_on_their_ranks() -> None:
    """With data parallelism, each rank has a scheduler and KV of its own. A rank that the client or
    a router has chosen stays, and vLLM chooses for requests that name no program."""
    from vllm.v1.engine.core_client import DPLBAsyncMPClient

    from servers.vllm.plugin.request_tags import read_tags

    choose = DPLBAsyncMPClient.get_core_engine_for_request

    @wraps(choose)
    def choose_by_program(client: Any, request: Any) -> Any:
        xargs = request.sampling_params and request.sampling_params.extra_args
        tags = read_tags(xargs, getattr(request, "session_id", None))
        program = tags.program_id or tags.ended
        if request.data_parallel_rank is None and program is not None:
            request.data_parallel_rank = crc32(program.encode()) % len(client.core_engines)
        return choose(client, request)

    DPLBAsyncMPClient.get_core_engine_for_request = choose_by_program
