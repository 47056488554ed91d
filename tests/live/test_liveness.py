"""A server counts as lost only if it does not respond or makes no progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from aiohttp import web

from harness.replay import liveness
from harness.replay.live_server import LiveServer
from harness.replay.liveness import Liveness, ServerMonitor, ServerTimeouts
from servers.basics.errors import EngineError
from tests.live import simulated_time
from tests.live.server import Server, serving
from tests.sentences import mentions

SHORT = ServerTimeouts(lost_after_s=0.5, stuck_after_s=1.5)
LONG = ServerTimeouts()


class CountingServer(Server):
    """A server that counts health checks."""

    health_checks = 0
    answer: int | None = 200

    async def models(self, request: web.Request) -> web.Response:
        self.health_checks += 1
        if self.answer is None:
            await asyncio.sleep(60)
        if self.answer != 200:
            return web.Response(status=self.answer or 0)
        return await super().models(request)


@dataclass
class Watched:
    """A server under watch, and after that the reason why it counts as lost, if it does."""

    server: CountingServer
    every_100_ms: Callable[[Liveness], object] = lambda _liveness: None
    timeouts: ServerTimeouts = SHORT
    within_s: float = 3.0
    lost: str | None = None

    async def watch(self) -> None:
        async with serving(self.server) as url:
            monitor = ServerMonitor([LiveServer(url)], self.timeouts)
            watching = asyncio.create_task(monitor.wait_until_lost())
            for _ in range(round(self.within_s / 0.1)):
                self.every_100_ms(monitor.liveness[0])
                if (await asyncio.wait({watching}, timeout=0.1))[0]:
                    break
            watching.cancel()
            await asyncio.wait({watching})
            self.lost = monitor.lost_reason and monitor.lost_reason.replace(url, "URL")


def answering(status: int | None) -> CountingServer:
    server = CountingServer()
    server.answer = status
    return server


def one_of_two_turns_progresses(liveness: Liveness) -> None:
    liveness.active_turns = 2
    liveness.byte_received()


def one_turn_is_silent(liveness: Liveness) -> None:
    liveness.active_turns = 1


def first_turn_fails() -> Callable[[Liveness], None]:
    failures = iter([True])

    def fail(liveness: Liveness) -> None:
        liveness.byte_received()
        if next(failures, False):
            liveness.turn_failed()

    return fail


@pytest.fixture(scope="module", autouse=True)
def _monitors_read_the_clock_of_their_loop() -> Iterator[None]:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liveness, "time", clock)
        yield


@pytest.fixture(scope="module")
def watched() -> dict[str, Watched]:
    """Watch all of these servers at once, until each is lost or its time is over."""
    servers = {
        "bytes": Watched(CountingServer(), Liveness.byte_received, LONG),
        "one of two turns": Watched(CountingServer(), one_of_two_turns_progresses),
        "no turns": Watched(CountingServer()),
        "a silent turn": Watched(CountingServer(), one_turn_is_silent, within_s=60),
        "no answer": Watched(answering(None), within_s=60),
        "status 502": Watched(answering(502), within_s=60),
        "status 401": Watched(answering(401)),
        "a failed turn": Watched(CountingServer(), first_turn_fails(), LONG),
    }

    async def go() -> None:
        await asyncio.gather(*(each.watch() for each in servers.values()))

    simulated_time.run(go())
    return servers


def test_a_server_that_sends_bytes_gets_no_health_check(watched: dict[str, Watched]) -> None:
    assert watched["bytes"].lost is None
    assert watched["bytes"].server.health_checks == 0


def test_a_turn_may_wait_forever_while_other_turns_of_its_server_progress(
    watched: dict[str, Watched],
) -> None:
    assert watched["one of two turns"].lost is None


def test_a_server_without_turns_may_be_silent(watched: dict[str, Watched]) -> None:
    assert watched["no turns"].lost is None
    assert watched["no turns"].server.health_checks > 0


def test_a_server_with_turns_may_not_be_silent(watched: dict[str, Watched]) -> None:
    stuck = watched["a silent turn"].lost or ""
    assert mentions(stuck, "URL is stuck", "1 active turn", "1.5 s (--stuck-after-s)")


def test_an_unresponsive_server_is_lost_even_without_turns(watched: dict[str, Watched]) -> None:
    for server, reason in (("no answer", "no response"), ("status 502", "status 502")):
        lost = watched[server].lost or ""
        assert mentions(lost, "URL is lost", reason, "0.5 s (--lost-after-s)")


def test_a_server_without_requests_may_be_unreachable_for_a_while() -> None:
    """It may be restarted between two turns, for example."""

    async def watch() -> tuple[str | None, float]:
        down = ServerMonitor([LiveServer("http://127.0.0.1:9")], SHORT)
        await down.wait_until_lost()
        return down.lost_reason, asyncio.get_running_loop().time()

    lost, elapsed_s = simulated_time.run(watch())
    assert mentions(lost or "", "http://127.0.0.1:9 is lost", "connection refused", "0.5 s")
    assert elapsed_s > SHORT.lost_after_s


def test_after_the_last_turn_a_suspected_server_has_the_full_timeout() -> None:
    class RecoveringServer(CountingServer):
        async def models(self, request: web.Request) -> web.Response:
            self.answer = 503 if not self.health_checks else 200
            return await super().models(request)

    async def go() -> str | None:
        async with serving(RecoveringServer()) as url:
            monitor = ServerMonitor([LiveServer(url)], LONG)
            monitor.liveness[0].turn_failed()
            await monitor.check_after_replay(all_failed=False)
            return monitor.lost_reason

    assert simulated_time.run(go()) is None


@pytest.mark.parametrize(
    ("health", "exits_after_s", "lost"),
    [
        (503, 3, "vLLM exited with code 1"),
        (503, 60, "URL is lost: status 503 at /health"),
        (200, 3, None),
    ],
)
def test_after_the_last_turn_the_exit_of_a_server_with_a_dead_engine_is_awaited(
    health: int, exits_after_s: float, lost: str | None
) -> None:
    """vLLM fails all turns when its engine dies, still lists its models, and exits later."""

    class DyingServer(CountingServer):
        async def health(self, _request: web.Request) -> web.Response:
            return web.Response(status=health)

    async def go() -> str | None:
        async with serving(DyingServer()) as url:
            exits_s = asyncio.get_running_loop().time() + exits_after_s

            def failure() -> Exception | None:
                exited = asyncio.get_running_loop().time() > exits_s
                return EngineError("vLLM exited with code 1") if exited else None

            monitor = ServerMonitor([LiveServer(url)], LONG, failure=failure)
            monitor.liveness[0].turn_failed()
            await monitor.check_after_replay(all_failed=False)
            return monitor.lost_reason and monitor.lost_reason.replace(url, "URL")

    assert simulated_time.run(go()) == lost


def test_a_server_that_refuses_to_list_its_models_is_not_lost(watched: dict[str, Watched]) -> None:
    assert watched["status 401"].lost is None


def test_a_failed_turn_starts_health_checks_until_the_server_responds(
    watched: dict[str, Watched],
) -> None:
    assert watched["a failed turn"].lost is None
    assert watched["a failed turn"].server.health_checks == 1


def test_a_silent_server_behind_a_router_of_others_is_lost_while_the_router_responds() -> None:
    async def watch() -> tuple[str | None, str]:
        silent = answering(None)
        async with serving(Server()) as router, serving(Server()) as up, serving(silent) as down:
            behind = LiveServer(up), LiveServer(down)
            monitor = ServerMonitor([LiveServer(router, behind=behind)], SHORT)
            monitor.liveness[0].active_turns = 1
            await monitor.wait_until_lost()
            return monitor.lost_reason, down

    lost, url = simulated_time.run(watch())
    assert mentions(lost or "", f"replica 1 ({url}) is lost", "no response", "0.5 s")


def test_a_router_of_others_that_does_not_respond_is_lost_by_that_name() -> None:
    async def watch() -> tuple[str | None, str]:
        async with serving(answering(None)) as router, serving(Server()) as up:
            monitor = ServerMonitor([LiveServer(router, behind=(LiveServer(up),))], SHORT)
            await monitor.wait_until_lost()
            return monitor.lost_reason, router

    lost, url = simulated_time.run(watch())
    assert mentions(lost or "", f"the router ({url}) is lost", "no response", "0.5 s")
