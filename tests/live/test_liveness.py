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


class Asked(Server):
    """Counts who looks after it."""

    times = 0
    answer: int | None = 200

    async def models(self, request: web.Request) -> web.Response:
        self.times += 1
        if self.answer is None:
            await asyncio.sleep(60)
        if self.answer != 200:
            return web.Response(status=self.answer or 0)
        return await super().models(request)


def watched(
    server: Asked,
    *,
    meanwhile: Callable[[Liveness], object],
    within_s: float,
    timeouts: ServerTimeouts = SHORT,
) -> str | None:
    """Why it counts as lost; None if not within that time. `meanwhile` is called every 0.1 s."""

    async def go() -> str | None:
        async with serving(server) as url:
            monitor = ServerMonitor([Replica(url)], timeouts)
            watching = asyncio.create_task(monitor.wait_until_lost())
            for _ in range(round(within_s / 0.1)):
                meanwhile(monitor.liveness[0])
                if (await asyncio.wait({watching}, timeout=0.1))[0]:
                    break
            watching.cancel()
            await asyncio.wait({watching})
            return monitor.lost_reason and monitor.lost_reason.replace(url, "URL")

    return asyncio.run(go())


def nothing(_liveness: Liveness) -> None:
    pass


def test_a_server_that_sends_bytes_gets_no_health_check() -> None:
    server = Asked()
    assert watched(server, meanwhile=Liveness.byte_received, within_s=2, timeouts=LONG) is None
    assert server.times == 0


def test_a_turn_may_wait_for_ever_while_others_of_its_server_go_on() -> None:
    def two_active_and_one_receives(liveness: Liveness) -> None:
        liveness.active_turns = 2
        liveness.byte_received()

    assert watched(Asked(), meanwhile=two_active_and_one_receives, within_s=3) is None


def test_a_server_without_turns_may_be_silent() -> None:
    server = Asked()
    assert watched(server, meanwhile=nothing, within_s=3) is None
    assert server.times > 0


def test_one_with_turns_may_not() -> None:
    def one_active(liveness: Liveness) -> None:
        liveness.active_turns = 1

    assert watched(Asked(), meanwhile=one_active, within_s=60) == (
        "URL is stuck: no byte for 1 active turn in 1.5 s (--stuck-after-s)"
    )


def test_an_unresponsive_server_is_lost_also_without_turns() -> None:
    silent = Asked()
    silent.answer = None
    lost = "URL is lost: no response for 0.5 s (--lost-after-s)"
    assert watched(silent, meanwhile=nothing, within_s=60) == lost
    behind_a_proxy = Asked()
    behind_a_proxy.answer = 502
    lost = "URL is lost: status 502 for 0.5 s (--lost-after-s)"
    assert watched(behind_a_proxy, meanwhile=nothing, within_s=60) == lost


def test_a_server_without_requests_may_be_unreachable_for_a_while() -> None:
    """Restarted between two turns, say."""
    began_s, down = time.monotonic(), ServerMonitor([Replica("http://127.0.0.1:9")], SHORT)
    asyncio.run(asyncio.wait_for(down.wait_until_lost(), 60))
    assert (
        down.lost_reason
        == "http://127.0.0.1:9 is lost: connection refused for 0.5 s (--lost-after-s)"
    )
    assert time.monotonic() - began_s > SHORT.lost_after_s


def test_after_the_last_turn_a_suspected_server_has_the_usual_time_to_respond() -> None:
    class Once(Asked):
        async def models(self, request: web.Request) -> web.Response:
            self.answer = 503 if not self.times else 200
            return await super().models(request)

    async def go() -> str | None:
        async with serving(Once()) as url:
            monitor = ServerMonitor([Replica(url)], LONG)
            monitor.liveness[0].suspected = True
            await monitor.check_after_replay(all_failed=False)
            return monitor.lost_reason

    assert asyncio.run(go()) is None


def test_one_that_refuses_to_say_what_it_serves_is_there() -> None:
    server = Asked()
    server.answer = 401
    assert watched(server, meanwhile=nothing, within_s=3) is None


def test_a_failed_turn_starts_health_checks_until_the_server_responds() -> None:
    server, doubts = Asked(), iter([True])

    def one_failed(liveness: Liveness) -> None:
        liveness.byte_received()
        liveness.suspected |= next(doubts, False)

    assert watched(server, meanwhile=one_failed, within_s=3, timeouts=LONG) is None
    assert server.times == 1
