"""A router is asked about live turns in the same way as in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from harness.replay.live_router import AVOIDED_S, LiveRouter
from servers.basics.errors import InvalidRouter
from servers.routers.base import Replica, RoutedTurn, Router, least_busy, usable
from servers.routers.sticky import Sticky
from servers.routers.thunderagent import ThunderAgent


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class OneAtATime(Router):
    """Each replica serves one turn at a time; the others wait in order of arrival."""

    name = "one-at-a-time"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self.waiting: list[RoutedTurn] = []
        self.ended: list[tuple[str, int]] = []
        self.programs_ended: list[str] = []

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        index = least_busy(self.replicas)
        if self.replicas[index].turns:
            self.waiting.append(turn)
            return None
        return index

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        index = least_busy(self.replicas)
        if self.waiting and not self.replicas[index].turns:
            return [(self.waiting.pop(0), index)]
        return ()

    def finished(self, turn: RoutedTurn, now_s: float) -> None:
        self.ended.append((turn.program_id, turn.replica))

    def program_ended(self, program_id: str, now_s: float) -> None:
        self.programs_ended.append(program_id)


class Never(Router):
    name = "never"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        return None


Scenario = Callable[[LiveRouter], Coroutine[Any, Any, None]]


def with_router(build: Any, scenario: Scenario, replicas: int = 1, **options: Any) -> LiveRouter:
    """Run a scenario while the router does its duties."""

    async def go() -> LiveRouter:
        servers = [Replica(index, 1000) for index in range(replicas)]
        live = LiveRouter(build, servers, options.pop("clock", time.monotonic), **options)
        duties = asyncio.create_task(live.run())
        try:
            await asyncio.wait_for(scenario(live), timeout=60)
        finally:
            duties.cancel()
            with suppress(asyncio.CancelledError, InvalidRouter):
                await duties
        return live

    return asyncio.run(go())


def arrives(live: LiveRouter, program_id: str, job_id: str = "") -> RoutedTurn:
    return live.turn(program_id, job_id or program_id, 10)


async def send(live: LiveRouter, program_id: str, job_id: str = "") -> RoutedTurn:
    turn = arrives(live, program_id, job_id)
    await live.route(turn)
    return turn


def test_a_turn_that_is_held_back_goes_when_another_one_ends() -> None:
    clock = Clock()

    async def scenario(live: LiveRouter) -> None:
        first = await send(live, "a")
        second = arrives(live, "b")
        held = asyncio.create_task(live.route(second))
        await asyncio.sleep(0)
        assert (second.replica, live.replicas[0].turns) == (-1, 1)
        clock.now_s = 2.5
        live.finished(first)
        assert (second.replica, live.replicas[0].turns) == (0, 1), "at once, as in virtual time"
        assert await held == 2.5

    with_router(OneAtATime, scenario, clock=clock)


def test_turns_are_numbered_by_arrival_and_within_their_program() -> None:
    async def scenario(live: LiveRouter) -> None:
        turns = [await send(live, name) for name in ("a", "b", "a")]
        assert [(turn.id, turn.index, turn.job_id) for turn in turns] == [
            (0, 0, "a"),
            (1, 0, "b"),
            (2, 1, "a"),
        ]

    with_router(Sticky, scenario)


def test_the_turn_of_a_client_that_gave_up_ends_and_is_not_sent_later() -> None:
    async def scenario(live: LiveRouter) -> None:
        assert isinstance(router := live.router, OneAtATime)
        first = await send(live, "a")
        waiting = asyncio.create_task(send(live, "gone"))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert router.ended == [("gone", -1)]
        live.finished(first)
        assert [turn.program_id for turn in router.waiting] == [], "the router has returned it"
        assert live.replicas[0].turns == 0

    with_router(OneAtATime, scenario)


def test_a_program_ends_for_the_router_when_its_last_turn_has_ended() -> None:
    async def scenario(live: LiveRouter) -> None:
        assert isinstance(router := live.router, OneAtATime)
        turn = await send(live, "a")
        assert live.program_ended("a") == [0]
        assert router.programs_ended == []
        live.finished(turn)
        assert router.programs_ended == ["a"]
        assert live.program_ended("a") == [], "it is not known any more"

    with_router(OneAtATime, scenario)


def test_the_end_of_a_program_names_the_replicas_that_served_its_other_turns() -> None:
    class Alternating(OneAtATime):
        def route(self, turn: RoutedTurn, now_s: float) -> int | None:
            return turn.index % 2

    async def scenario(live: LiveRouter) -> None:
        for ends in (False, False, True):
            others = live.finished(await send(live, "a"), ends_program=ends)
        assert others == [1], "the last turn was on replica 0"

    with_router(Alternating, scenario, replicas=3)


def test_ticks_are_at_whole_multiples_of_the_period() -> None:
    """The clock begins at 0.15 s. A tick that the machine delays is in its own period."""
    ticks: list[float] = []

    class Ticking(Never):
        period_s = 0.1

        def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
            ticks.append(now_s)
            return ()

    started_s = time.monotonic() - 0.15

    async def scenario(_live: LiveRouter) -> None:
        while len(ticks) < 3:
            await asyncio.sleep(0.01)

    with_router(Ticking, scenario, clock=lambda: time.monotonic() - started_s)
    periods = [int(tick / 0.1) for tick in ticks]
    assert 2 <= periods[0] < periods[1] < periods[2]


@pytest.mark.parametrize(("report_s", "every_s"), [(0.2, 0.2), (0.0, 0.1)])
def test_loads_are_read_as_often_as_the_router_asks_for(report_s: float, every_s: float) -> None:
    """A router that wants a fresh report for each decision gets one every 0.1 s."""
    read_s: dict[int, list[float]] = {0: [], 1: []}

    class Reading(Never):
        pass

    Reading.report_s = report_s

    async def report(replica: Replica) -> None:
        read_s[replica.index].append(time.monotonic())

    async def scenario(_live: LiveRouter) -> None:
        while min(map(len, read_s.values())) < 3:
            await asyncio.sleep(0.01)

    with_router(Reading, scenario, replicas=2, report=report)
    for times_s in read_s.values():
        assert all(b - a >= 0.99 * every_s for a, b in pairwise(times_s))


def test_loads_are_not_read_for_a_router_that_does_not_ask() -> None:
    async def report(replica: Replica) -> None:
        raise AssertionError(f"replica {replica.index} was asked")

    async def scenario(_live: LiveRouter) -> None:
        await asyncio.sleep(0.05)

    with_router(Never, scenario, report=report)


def test_a_server_whose_turn_failed_gets_no_new_job_for_30_s_or_until_a_turn_succeeds() -> None:
    clock = Clock()

    async def scenario(live: LiveRouter) -> None:
        homes = []

        async def job(name: str, succeeded: bool) -> RoutedTurn:
            turn = await send(live, name)
            homes.append(turn.replica)
            live.finished(turn, succeeded=succeeded)
            return turn

        await job("a", succeeded=False)
        for name in ("b", "c", "d"):
            await job(name, succeeded=True)
        assert (await job("a", succeeded=False)).replica == 0, "a stays where its KV is"
        clock.now_s = AVOIDED_S - 0.1
        await job("e", succeeded=True)
        assert homes == [0, 1, 1, 1, 0, 1]
        clock.now_s = AVOIDED_S
        assert (await job("f", succeeded=False)).replica == 0
        assert (await job("g", succeeded=False)).replica == 1
        assert usable(live.replicas) == live.replicas, "all have failed"
        assert (await job("h", succeeded=True)).replica == 0, "the one with the fewest jobs"

    with_router(Sticky, scenario, replicas=2, clock=clock)


def test_a_turn_whose_client_left_says_nothing_about_its_server() -> None:
    async def scenario(live: LiveRouter) -> None:
        live.finished(await send(live, "a"), succeeded=None)
        assert live.replicas[0].available

    with_router(Sticky, scenario)


def test_sub_agents_go_to_the_server_of_their_job_until_all_of_it_has_ended() -> None:
    async def scenario(live: LiveRouter) -> None:
        root, other = await send(live, "root"), await send(live, "other")
        child = await send(live, "child", "root")
        assert (root.replica, other.replica, child.replica) == (0, 1, 0)
        live.finished(root, ends_program=True)
        assert (await send(live, "late", "root")).replica == 0
        live.finished(child, ends_program=True)
        assert (await send(live, "child 2", "root")).replica == 0

    with_router(Sticky, scenario, replicas=2)


def test_the_lengths_of_a_turn_are_those_of_its_answer_when_it_ends() -> None:
    """The estimate of 10 tokens leaves room for a second program, the true 950 do not."""

    async def scenario(live: LiveRouter) -> None:
        turn = await send(live, "a")
        turn.prompt_tokens, turn.output_tokens = 900, 50
        live.finished(turn)
        second = asyncio.create_task(send(live, "b"))
        await asyncio.sleep(0)
        assert not second.done()
        live.program_ended("a")
        assert (await second).replica == 0, "at the next tick"

    with_router(lambda replicas: ThunderAgent(replicas, interval_s=0.05), scenario)


class Paired(Router):
    """A turn waits for the next one; then both go."""

    name = "paired"
    waiting: RoutedTurn | None = None

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        if self.waiting is None:
            self.waiting = turn
            return None
        return 0

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        if self.waiting is None or not self.replicas[0].turns:
            return ()
        waiting, self.waiting = self.waiting, None
        return [(waiting, 0)]


def test_an_arrival_may_resume_a_turn_that_is_held_back() -> None:
    async def scenario(live: LiveRouter) -> None:
        first = asyncio.create_task(send(live, "a"))
        await asyncio.sleep(0.01)
        assert not first.done()
        await send(live, "b")
        assert (await first).replica == 0

    with_router(Paired, scenario)


class Delayed(Router):
    """Each turn waits for 50 ms."""

    name = "delayed"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self.waiting: list[RoutedTurn] = []
        self.calls = 0

    def route(self, turn: RoutedTurn, now_s: float) -> None:
        self.waiting.append(turn)

    def wake_s(self, now_s: float) -> float | None:
        return self.waiting[0].arrival_s + 0.05 if self.waiting else None

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        self.calls += 1
        due = [turn for turn in self.waiting if turn.arrival_s + 0.05 <= now_s]
        self.waiting = self.waiting[len(due) :]
        return [(turn, 0) for turn in due]


def test_a_router_is_woken_up_when_it_wants_to() -> None:
    held_s = []
    started_s = time.monotonic()

    async def scenario(live: LiveRouter) -> None:
        turns = [arrives(live, name) for name in "ab"]
        held_s.extend(await asyncio.gather(*map(live.route, turns)))

    live = with_router(Delayed, scenario)
    assert all(0.05 <= each < time.monotonic() - started_s for each in held_s)
    assert isinstance(live.router, Delayed)
    assert live.router.calls < 10
