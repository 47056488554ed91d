"""A server counts as lost only if it does not respond or makes no progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from harness.replay.live import Replica
from harness.replay.liveness import Liveness, ServerMonitor, ServerTimeouts
from tests.live.server import Server, serving

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


def lost_reason(
    server: CountingServer,
    *,
    every_100_ms: Callable[[Liveness], object],
    within_s: float,
    timeouts: ServerTimeouts = SHORT,
) -> str | None:
    """Return why the server counts as lost; None if it does not within `within_s`."""

    async def go() -> str | None:
        async with serving(server) as url:
            monitor = ServerMonitor([Replica(url)], timeouts)
            watching = asyncio.create_task(monitor.wait_until_lost())
            for _ in range(round(within_s / 0.1)):
                every_100_ms(monitor.liveness[0])
                if (await asyncio.wait({watching}, timeout=0.1))[0]:
                    break
            watching.cancel()
            await asyncio.wait({watching})
            return monitor.lost_reason and monitor.lost_reason.replace(url, "URL")

    return asyncio.run(go())


def do_nothing(_liveness: Liveness) -> None:
    pass


def test_a_server_that_sends_bytes_gets_no_health_check() -> None:
    server = CountingServer()
    assert (
        lost_reason(server, every_100_ms=Liveness.byte_received, within_s=2, timeouts=LONG) is None
    )
    assert server.health_checks == 0


def test_a_turn_may_wait_forever_while_other_turns_of_its_server_progress() -> None:
    def one_of_two_turns_progresses(liveness: Liveness) -> None:
        liveness.active_turns = 2
        liveness.byte_received()

    assert (
        lost_reason(CountingServer(), every_100_ms=one_of_two_turns_progresses, within_s=3) is None
    )


def test_a_server_without_turns_may_be_silent() -> None:
    server = CountingServer()
    assert lost_reason(server, every_100_ms=do_nothing, within_s=3) is None
    assert server.health_checks > 0


def test_a_server_with_turns_may_not_be_silent() -> None:
    def one_turn_runs(liveness: Liveness) -> None:
        liveness.active_turns = 1

    assert lost_reason(CountingServer(), every_100_ms=one_turn_runs, within_s=60) == (
        "URL is stuck: no byte for 1 active turn in 1.5 s (--stuck-after-s)"
    )


def test_an_unresponsive_server_is_lost_even_without_turns() -> None:
    silent = CountingServer()
    silent.answer = None
    lost = "URL is lost: no response for 0.5 s (--lost-after-s)"
    assert lost_reason(silent, every_100_ms=do_nothing, within_s=60) == lost
    behind_a_proxy = CountingServer()
    behind_a_proxy.answer = 502
    lost = "URL is lost: status 502 for 0.5 s (--lost-after-s)"
    assert lost_reason(behind_a_proxy, every_100_ms=do_nothing, within_s=60) == lost


def test_a_server_without_requests_may_be_unreachable_for_a_while() -> None:
    """It may be restarted between two turns, for example."""
    started_s, down = time.monotonic(), ServerMonitor([Replica("http://127.0.0.1:9")], SHORT)
    asyncio.run(asyncio.wait_for(down.wait_until_lost(), 60))
    assert (
        down.lost_reason
        == "http://127.0.0.1:9 is lost: connection refused for 0.5 s (--lost-after-s)"
    )
    assert time.monotonic() - started_s > SHORT.lost_after_s


def test_after_the_last_turn_a_suspected_server_has_the_full_timeout() -> None:
    class RecoveringServer(CountingServer):
        async def models(self, request: web.Request) -> web.Response:
            self.answer = 503 if not self.health_checks else 200
            return await super().models(request)

    async def go() -> str | None:
        async with serving(RecoveringServer()) as url:
            monitor = ServerMonitor([Replica(url)], LONG)
            monitor.liveness[0].suspected = True
            await monitor.check_after_replay(all_failed=False)
            return monitor.lost_reason

    assert asyncio.run(go()) is None


def test_a_server_that_refuses_to_list_its_models_is_not_lost() -> None:
    server = CountingServer()
    server.answer = 401
    assert lost_reason(server, every_100_ms=do_nothing, within_s=3) is None


def test_a_failed_turn_starts_health_checks_until_the_server_responds() -> None:
    server, failures = CountingServer(), iter([True])

    def first_turn_fails(liveness: Liveness) -> None:
        liveness.byte_received()
        liveness.suspected |= next(failures, False)

    assert lost_reason(server, every_100_ms=first_turn_fails, within_s=3, timeouts=LONG) is None
    assert server.health_checks == 1
