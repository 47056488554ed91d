"""No router sends a new program to a replica that is not available, while another one is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from servers.routers.base import Replica, RoutedTurn, Router
from servers.routers.least_loaded import LeastLoaded
from servers.routers.round_robin import RoundRobin
from servers.routers.sticky import Sticky
from servers.routers.thunderagent import ThunderAgent
from servers.routing import ROUTERS as REGISTERED
from servers.routing import named_router

Build = Callable[[Sequence[Replica]], Router]
ROUTERS: dict[str, Build] = {
    # program-scheduling admits one program at a time until a load report says that none waits.
    **{name: named_router(name) for name in REGISTERED.built_in if name != "program-scheduling"},
    "least-loaded(load=kv)": partial(LeastLoaded, load="kv"),
}
every_router = pytest.mark.parametrize("build", ROUTERS.values(), ids=ROUTERS)


def turn(number: int, program_id: str | None = None, job_id: str | None = None) -> RoutedTurn:
    name = program_id or f"p{number}"
    return RoutedTurn(number, name, 0, 0.0, 10, None, ((name, 10),), job_id)


def replicas() -> list[Replica]:
    return [Replica(index, 10_000) for index in range(3)]


@every_router
def test_new_programs_go_to_the_replicas_that_are_available(build: Build) -> None:
    three = replicas()
    router = build(three)
    three[0].available = False
    chosen = [router.route(turn(number), 0.0) for number in range(8)]
    assert 0 not in chosen
    three[0].available = True
    three[1].available = three[2].available = False
    assert {router.route(turn(number), 0.0) for number in range(8, 16)} == {0}


@every_router
def test_if_no_replica_is_available_all_are_used(build: Build) -> None:
    three = replicas()
    for replica in three:
        replica.available = False
    router = build(three)
    for number in range(12):
        chosen = router.route(turn(number), 0.0)
        assert chosen in range(3)
        three[chosen].turns += 1


@pytest.mark.parametrize("build", [Sticky, ThunderAgent])
def test_a_program_stays_on_a_replica_that_is_not_available(build: Build) -> None:
    three = replicas()
    router = build(three)
    home = router.route(turn(0, "a"), 0.0)
    assert home is not None
    three[home].available = False
    assert router.route(turn(1, "a"), 1.0) == home


def test_round_robin_goes_on_after_the_replica_that_it_left_out() -> None:
    three = replicas()
    router = RoundRobin(three)
    three[1].available = False
    assert [router.route(turn(number), 0.0) for number in range(4)] == [0, 2, 0, 2]
    three[1].available = True
    assert [router.route(turn(number), 0.0) for number in range(4)] == [0, 1, 2, 0]


def test_thunderagent_resumes_no_program_on_a_replica_that_is_not_available() -> None:
    """Each replica has room for one program. c waits, and does not resume where a has ended."""
    two = [Replica(0, 150), Replica(1, 150)]
    router = ThunderAgent(two)
    assert [router.route(turn(k, name), 0.0) for k, name in enumerate("abc")] == [0, 1, None]
    two[0].available = False
    router.program_ended("a", 1.0)
    assert router.tick(5.0) == []
    two[0].available = True
    assert [(each.program_id, index) for each, index in router.tick(10.0)] == [("c", 0)]


def test_sticky_keeps_a_sub_agent_at_its_job_and_counts_jobs() -> None:
    """Two sub-agents of a count as one job, so that b and c go to replicas 1 and 2, and d to 0."""
    router = Sticky(replicas())
    assert router.route(turn(0, "a"), 0.0) == 0
    assert [router.route(turn(k, f"a/{k}", "a"), 0.0) for k in (1, 2)] == [0, 0]
    assert [router.route(turn(k, name), 0.0) for k, name in ((3, "b"), (4, "c"), (5, "d"))] == [
        1,
        2,
        0,
    ]
    router.program_ended("b", 0.0)
    assert router.route(turn(6, "e"), 0.0) == 1
