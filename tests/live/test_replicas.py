"""With several servers, a router distributes the turns; by default a job stays on one server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness.replay.live import replay_live
from harness.replay.live_router import BuildRouter
from harness.replay.live_server import LiveServer, Service
from servers.basics.errors import InvalidRouter
from servers.routers.base import RoutedTurn, Router
from servers.routers.least_loaded import LeastLoaded
from servers.routers.round_robin import RoundRobin
from servers.routers.sticky import Sticky
from tests.lines import Line, into
from tests.live import simulated_time
from tests.live.replaying import program
from tests.live.server import Server, serving
from traces import Fork, Program


def replayed_on(
    servers: Sequence[Server],
    programs: Sequence[Program],
    lines: list[Line],
    router: BuildRouter = Sticky,
    **options: Any,
) -> None:
    async def replay() -> None:
        async with serving(servers[0]) as first, serving(servers[1]) as second:
            await replay_live(
                programs,
                [0.0] * sum(each.fork is None for each in programs),
                None,
                Service([LiveServer(first), LiveServer(second)], "m", range(2**31), 0, **options),
                on_turn=into(lines),
                router=router,
            )

    simulated_time.run(replay())


def test_all_turns_and_sub_agents_of_a_job_are_on_one_server() -> None:
    jobs = [program("a", 3), program("b", 3), program("a/1", 2, fork=Fork("a", 0))]
    servers, lines = [Server(), Server()], list[Line]()
    replayed_on(servers, jobs, lines)
    seen = [{name for name, _ in server.prompts} for server in servers]
    assert sorted(seen, key=len) == [{"b"}, {"a", "a/1"}]
    for line in lines:
        assert line["program_id"] in seen[line["replica"]]
        assert line["held_s"] == 0.0


def test_another_server_learns_of_the_end_of_a_program_that_it_served() -> None:
    """Turns 0 and 2 are on server 0, which knows the end from the last turn's `is_last`."""
    servers, lines = [Server(), Server()], list[Line]()
    replayed_on(servers, [program("a", 3)], lines, router=RoundRobin)
    assert [line["replica"] for line in lines] == [0, 1, 0]
    assert servers[0].ended == []
    assert servers[1].ended == ["a"]


def test_turns_on_a_server_that_dies_fail_and_the_other_server_gets_the_next_ones() -> None:
    """Server 0 has no turn when the others of b come, and would be the first of the idle ones."""
    servers, lines = [Server(), Server(think_s=0.1)], list[Line]()
    servers[0].faults = {("a", 0): "cut"}
    replayed_on(servers, [program("a", 2), program("b", 3)], lines, router=LeastLoaded)
    failed, *later = sorted(lines, key=lambda line: line["finished_at_s"])
    assert (failed["program_id"], failed["replica"]) == ("a", 0)
    assert failed["error"] == "connection lost after 3 output tokens"
    assert [(line["replica"], line["error"]) for line in later] == [(1, None)] * 3


class Never(Router):
    name = "never"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        return None if turn.index else 0


class Seven(Router):
    name = "seven"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        return 7 * turn.index


@pytest.mark.parametrize(
    ("router", "message"),
    [
        (Never, "the router never holds back 1 turns forever"),
        (Seven, "the router seven sends a turn of a to replica 7; there are 2, from 0"),
    ],
)
def test_a_router_that_breaks_its_contract_ends_the_replay_after_all_turns_are_recorded(
    router: type[Router], message: str
) -> None:
    lines: list[Line] = []
    with pytest.raises(InvalidRouter, match=message):
        replayed_on(
            [Server(), Server()], [program("a", 3)], lines, router=router, turn_timeout_s=0.5
        )
    assert [line["turn"] for line in lines] == [0, 1]
    assert message in lines[1]["error"]
    assert "replica" not in lines[1], "it was sent to none"
