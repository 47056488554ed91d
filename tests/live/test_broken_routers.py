"""A router that breaks its contract fails the turns that it decides about, with its name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from harness.replay.live_router import LiveRouter
from servers.basics.errors import InvalidRouter
from servers.routers.base import RoutedTurn
from tests.live.test_live_router import Never, OneAtATime, send, with_router


class Elsewhere(OneAtATime):
    name = "elsewhere"

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        return [(turn, 7) for turn in self.waiting]


class Raising(OneAtATime):
    name = "raising"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        return {"other": 0}[turn.program_id]


class Seven(OneAtATime):
    name = "seven"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        return 7


class BadTick(Never):
    name = "bad-tick"
    period_s = 0.05

    def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        raise ZeroDivisionError("no program")


@pytest.mark.parametrize(
    ("router", "message"),
    [
        (Raising, "the router raising failed in `route`: KeyError: 'a'"),
        (Seven, "the router seven sends a turn of a to replica 7; there are 1, from 0"),
        (Never, "the router never holds back 1 turns forever, although no replica has a turn;"),
        (BadTick, "the router bad-tick failed in `tick`: ZeroDivisionError: no program"),
    ],
)
def test_a_router_that_breaks_its_contract_fails_the_turn(router: Any, message: str) -> None:
    async def scenario(live: LiveRouter) -> None:
        with pytest.raises(InvalidRouter, match=message):
            await send(live, "a")
        assert live.replicas[0].turns == 0

    with_router(router, scenario, most_held_s=0.2)


def test_a_wrong_replica_at_the_end_of_another_turn_fails_the_turn_that_was_held_back() -> None:
    async def scenario(live: LiveRouter) -> None:
        first = await send(live, "a")
        held = asyncio.create_task(send(live, "b"))
        await asyncio.sleep(0)
        live.finished(first)
        with pytest.raises(InvalidRouter, match=r"elsewhere .* of b to replica 7"):
            await held

    with_router(Elsewhere, scenario)
