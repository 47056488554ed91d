"""A redirect takes neither keys nor requests to a server that the user did not name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from harness.calibrate.probe import Target, open_probe
from harness.engines.vllm_at_url import describe
from harness.engines.warm_up import warm_up
from harness.gateway import Backend, Gateway, serve_gateway
from harness.replay.http import API_KEY
from harness.replay.live import Replica
from harness.replay.liveness import ServerMonitor, ServerTimeouts
from harness.replay.served_models import served_models
from servers.errors import MeasurementFailed, ServerUnavailable
from tests.gateway.test_proxy import ASK, post
from tests.harness.in_process import bench
from tests.loopback import on_loopback
from tests.threaded import threaded

KEY = "sk-planted-12345"


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
            self.received_keys.append(request.headers["Authorization"])
            return web.Response(status=self.status, headers={"Location": f"{other}/stolen"})

        other_app, app = web.Application(), web.Application()
        other_app.router.add_route("*", "/{path:.*}", stolen)
        app.router.add_route("*", "/{path:.*}", redirect)
        async with on_loopback(other_app) as other, on_loopback(app) as url:
            yield url.replace("127.0.0.1", "localhost")


async def lists_models(url: str) -> None:
    with pytest.raises(ServerUnavailable, match="a redirect, which is not followed"):
        await asyncio.to_thread(served_models, url, "--engine")


async def describes(url: str) -> None:
    with pytest.raises(ServerUnavailable, match="HTTP Error 30"):
        await asyncio.to_thread(describe, url)


async def watches(url: str) -> None:
    monitor = ServerMonitor([Replica(url)], ServerTimeouts(5.0), KEY)
    monitor.liveness[0].suspected = True
    await monitor.check_after_replay(all_failed=False)
    assert monitor.lost_reason is None


async def warms_up(url: str) -> None:
    await asyncio.to_thread(warm_up, url, "m", range(9), 9, 99, 999)


async def probes(url: str) -> None:
    async with open_probe(Target(url, "m", range(9), 99, 99, 9, 9)) as probe:
        with pytest.raises(MeasurementFailed, match="the server answered 30"):
            await probe.time_to_first_token(probe.new_prompt(2))


async def ends_program(url: str) -> None:
    gateway = Gateway([Backend(url, True)], lambda _line: None, KEY)
    async with serve_gateway(gateway) as base_url:
        path = f"{base_url}/programs/p/v1/chat/completions"
        await post(path, ASK, allow_redirects=False)
        await gateway.end("p")


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize(
    "client", [lists_models, describes, watches, warms_up, probes, ends_program]
)
def test_no_redirect_is_followed(
    client: Callable[[str], Awaitable[None]], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, KEY)
    server = RedirectingServer(status)

    async def go() -> None:
        async with server.serving() as url:
            await client(url)

    asyncio.run(go())
    assert set(server.received_keys) == {f"Bearer {KEY}"}
    assert server.stolen_requests == []


def test_a_sweep_on_a_redirect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, KEY)
    server = RedirectingServer(302)
    with threaded(server.serving()) as url:
        for words in (["sweep", "--engine", url, "--jps", "1"], ["gateway", url]):
            code, _, complaint = bench(*words)
            assert code == 2
            assert complaint.endswith(
                f"{url}: /v1/models answered 302, a redirect, which is not followed; give the "
                "URL of the server itself\n"
            )
    assert server.stolen_requests == []
