"""Neither a redirect nor a proxy gets keys or requests for a server that the user named, and the
server gets no keys of others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from harness.calibrate.probe import Target, open_probe
from harness.engines.url import describe
from harness.engines.warm_up import warm_up
from harness.gateway import Gateway, serve_gateway
from harness.replay.http import API_KEY, client_session
from harness.replay.identity import session_ends
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service, served_models
from harness.replay.liveness import ServerMonitor, ServerTimeouts
from harness.replay.load_reports import LoadReports, kv_tokens_of, replicas_of
from harness.replay.sglang import flush_cache
from servers.basics.errors import CellFailed, MeasurementFailed, Unavailable
from servers.records.turns import TurnRecord
from tests.gateway.test_proxy import ASK, post
from tests.harness.in_process import bench
from tests.loopback import on_loopback
from tests.sentences import mentions
from tests.threaded import threaded
from traces import Program, Turn

KEY = "sk-planted-12345"
OTHER = "sk-other-67890"


@dataclass
class RedirectingServer:
    """A server that redirects each request to another one, and what the other one received."""

    status: int
    received_keys: list[str] = field(default_factory=list)
    stolen_requests: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async def stolen(request: web.Request) -> web.Response:
            self.stolen_requests.append(f"{request.path} {request.headers.get('Authorization')}")
            return web.json_response({"data": [{"id": "m"}]})

        async def redirect(request: web.Request) -> web.Response:
            self.received_keys += [value for value in request.headers.values() if "sk-" in value]
            return web.Response(status=self.status, headers={"Location": f"{other}/stolen"})

        other_app, app = web.Application(), web.Application()
        other_app.router.add_route("*", "/{path:.*}", stolen)
        app.router.add_route("*", "/{path:.*}", redirect)
        async with on_loopback(other_app) as other, on_loopback(app) as url:
            yield url.replace("127.0.0.1", "localhost")


async def lists_models(url: str) -> None:
    with pytest.raises(Unavailable, match="a redirect, which is not followed"):
        await asyncio.to_thread(served_models, url, "--engine")


async def describes(url: str) -> None:
    with pytest.raises(Unavailable, match="HTTP status 30"):
        await asyncio.to_thread(describe, url)


async def watches(url: str) -> None:
    monitor = ServerMonitor([LiveServer(url)], ServerTimeouts(5.0), KEY)
    monitor.liveness[0].turn_failed()
    await monitor.check_after_replay(all_failed=False)
    assert monitor.lost_reason is None


async def warms_up(url: str) -> None:
    await asyncio.to_thread(warm_up, url, "m", range(9), 9, 99, 999)


async def probes(url: str) -> None:
    async with open_probe(Target(url, "m", range(9), 99, 99, 9, 9)) as probe:
        with pytest.raises(MeasurementFailed, match="the server answered 30"):
            await probe.time_to_first_token(probe.new_prompt(2))


async def ends_program(url: str) -> None:
    gateway = Gateway([LiveServer(url, tagged=True)], lambda _line: None, KEY)
    async with serve_gateway(gateway) as base_url:
        path = f"{base_url}/programs/p/v1/chat/completions"
        await post(path, ASK, allow_redirects=False)
        await gateway.end("p")


async def finds_session_ends(url: str) -> None:
    assert await asyncio.to_thread(session_ends, url) == ()


async def finds_memory(url: str) -> None:
    assert await asyncio.to_thread(kv_tokens_of, url) == 0


async def reads_loads(url: str) -> None:
    (replica,) = replicas_of([LiveServer(url, tagged=True)])
    async with client_session() as session:
        await LoadReports(session, [LiveServer(url)], KEY, lambda: 0.0)(replica)


async def flushes_cache(url: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("harness.replay.sglang.FLUSH_WITHIN_S", 0.0)
        with pytest.raises(CellFailed, match="status 30"):
            await asyncio.to_thread(flush_cache, url)


async def replays(url: str) -> None:
    records: list[TurnRecord] = []
    await replay_live(
        [Program("p", (Turn(9, 1),))],
        [0.0],
        None,
        Service([LiveServer(url)], "m", range(9), seed=0),
        on_turn=records.append,
        api_key=KEY,
    )
    assert "the server answered 30" in str(records[0].error)


@pytest.fixture(autouse=True)
def api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, KEY)
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, OTHER)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"Authorization: {OTHER}\nX-Gateway-Key: {OTHER}")


CLIENTS = [
    lists_models,
    describes,
    watches,
    warms_up,
    probes,
    ends_program,
    finds_session_ends,
    finds_memory,
    reads_loads,
    flushes_cache,
    replays,
]


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_redirect_is_followed(client: Callable[[str], Awaitable[None]], status: int) -> None:
    server = RedirectingServer(status)

    async def go() -> None:
        async with server.serving() as url:
            await client(url)

    asyncio.run(go())
    assert set(server.received_keys) == {f"Bearer {KEY}"}
    assert server.stolen_requests == []


async def run_all_clients() -> None:
    for client in CLIENTS:
        server = RedirectingServer(302)
        async with server.serving() as url:
            await client(url)
        print(client.__name__, *sorted(set(server.received_keys)))


def test_no_request_goes_through_a_proxy() -> None:
    """The clients run in another process, because urllib reads its proxies when it is imported."""
    proxied: list[str] = []

    async def record(request: web.Request) -> web.Response:
        proxied.append(f"{request.method} {request.url} {request.headers.get('Authorization')}")
        return web.Response(status=502)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", record)
    run = f"import asyncio, {__name__} as tests; asyncio.run(tests.run_all_clients())"
    with threaded(on_loopback(app)) as proxy:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        proxies = {name: proxy for upper in names for name in (upper, upper.lower())}
        done = subprocess.run(
            [sys.executable, "-c", run],
            env={**os.environ, **proxies, API_KEY: KEY, "NO_PROXY": "", "no_proxy": ""},
            capture_output=True,
            text=True,
            check=False,
        )
    assert proxied == []
    assert done.stdout.splitlines() == [f"{client.__name__} Bearer {KEY}" for client in CLIENTS]


def test_a_sweep_on_a_redirect_is_refused() -> None:
    server = RedirectingServer(302)
    with threaded(server.serving()) as url:
        for words in (["sweep", "--engine", url, "--jps", "1"], ["gateway", url]):
            code, _, complaint = bench(*words)
            assert code == 2
            assert mentions(complaint, url, "302, a redirect")
            assert complaint.count("\n") == 1
    assert server.stolen_requests == []
