"""What the plug-in does in vLLM's API servers: it passes the programs that headers name on to the
scheduler, and refuses invalid options before the engine starts.

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
SESSION, RANK = b"x-session-id", b"x-data-parallel-rank"
SEEN = "turnstile"
"""Marks requests whose headers are set."""


class ProgramHeaders:
    """ASGI middleware. `register` adds it, unless `VLLM_PLUGINS` leaves the plug-in out:
    `--middleware turnstile_vllm.ProgramHeaders` does the same."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and SEEN not in scope:
            headers = with_session(list(scope["headers"]), _ranks(scope))
            scope = {**scope, "headers": headers, SEEN: True}
        await self._app(scope, receive, send)


def with_session(headers: Headers, ranks: int = 1) -> Headers:
    """Return the headers with the program's id as session. With several ranks of data parallelism,
    each of which has a scheduler and KV of its own, all requests of a program go to the same."""
    by_name = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers[::-1]}
    program = program_in(by_name)
    if program is None:
        return headers
    session = program + LAST * is_final(by_name)
    kept = [(name, value) for name, value in headers if name != SESSION]
    kept.append((SESSION, session.encode("latin-1")))
    if ranks > 1 and RANK.decode() not in by_name:
        kept.append((RANK, str(crc32(program.encode()) % ranks).encode()))
    return kept


def _ranks(scope: Scope) -> int:
    """Return the number of ranks among which this API server distributes requests."""
    args = getattr(getattr(scope.get("app"), "state", None), "args", None)
    if getattr(args, "data_parallel_external_lb", False) or (
        getattr(args, "data_parallel_rank", None) is not None
    ):
        return 1
    hybrid = getattr(args, "data_parallel_hybrid_lb", False)
    ranks = getattr(args, "data_parallel_size_local" if hybrid else "data_parallel_size", 1)
    return int(ranks or 1)


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
