"""A router makes the same decisions in front of live servers as in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import pytest

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from servers.routers.least_loaded import LeastLoaded
from servers.routers.power_of_two import PowerOfTwo
from servers.routers.prefix_aware import PrefixAware
from servers.routers.round_robin import RoundRobin
from servers.routers.sticky import Sticky
from servers.routers.thunderagent import ThunderAgent
from servers.sim import Limits
from tests.lines import Line, into
from tests.live import simulated_time
from tests.live.replaying import program
from tests.live.server import Server, serving
from tests.sim.test_fleet import Build, play
from tests.sim.worlds import World, profile
from traces import Fork, Program

SERVED_S = 0.3
GAP_S = 0.3
STARTS_S = (0.0, 0.2, 0.4)
"""So each turn begins and ends at least 0.05 s before and after any other one, live and in virtual
time, where a turn takes six steps of 50 ms."""
STEP_PS = 48_000_000_000


async def live(programs: Sequence[Program], router: Build, kv_tokens: int) -> list[Line]:
    lines: list[Line] = []
    async with AsyncExitStack() as stack:
        servers = [serving(Server(think_s=SERVED_S)) for _ in range(2)]
        urls = [await stack.enter_async_context(server) for server in servers]
        await replay_live(
            programs,
            STARTS_S,
            None,
            Service(
                [LiveServer(url, kv_tokens=kv_tokens) for url in urls], "m", range(2**31), seed=0
            ),
            on_turn=into(lines),
            router=router,
        )
    return lines


def virtual(programs: Sequence[Program], router: Build, kv_blocks: int) -> list[Line]:
    machine = profile(kv_blocks, weights_ps=STEP_PS)
    world = World(list(programs), list(STARTS_S), machine, Limits(), None)
    return play(world, "fcfs", router, 2)[0]


def decisions(lines: list[Line]) -> dict[tuple[str, int], int]:
    return {(line["program_id"], line["turn"]): line["replica"] for line in lines}


def held_s(lines: list[Line]) -> dict[tuple[str, int], float]:
    return {(line["program_id"], line["turn"]): line["held_s"] for line in lines}


def test_turns_go_to_the_same_replicas_live_and_in_virtual_time() -> None:
    routers: list[Build] = [
        RoundRobin, LeastLoaded, PowerOfTwo, partial(PowerOfTwo, seed=3), Sticky, PrefixAware,
    ]  # fmt: skip
    programs = [program(name, 3, GAP_S) for name in ("a", "b", "c")]
    programs.append(program("a/1", 1, fork=Fork("a", 0, delay_s=0.05)))

    async def all_live() -> list[list[Line]]:
        return await asyncio.gather(*(live(programs, router, 1024) for router in routers))

    seen = []
    for router, lines in zip(routers, simulated_time.run(all_live()), strict=True):
        assert decisions(lines) == decisions(virtual(programs, router, 64)), router
        assert set(held_s(lines).values()) == {0.0}
        seen.append(decisions(lines))
    round_robin, least_loaded, *_, sticky, _ = seen
    assert [round_robin["a", k] for k in range(3)] != [0, 0, 0]
    assert {sticky["a", k] for k in range(3)} == {sticky["a/1", 0]} == {0}
    assert round_robin != least_loaded


def test_thunderagent_pauses_and_resumes_the_same_programs_live_and_in_virtual_time() -> None:
    """Two replicas of 128 tokens, so that one program of 10 tokens and the 100 that it counts more
    fits on each. The third, c, is held back from 0.4 s. At 0.99 s program a, which now counts
    32 + 100 tokens, is paused between its turns, and c gets its place at 1.32 s. The last turn of
    a, which came at 1.2 s and no longer fits, is forced after 1 s, at 2.31 s.
    """
    router = partial(ThunderAgent, interval_s=0.33, resume_after_s=1.0)
    programs = [program("a", 3, GAP_S), program("b", 2, GAP_S), program("c", 1)]
    lines = simulated_time.run(live(programs, router, 128))
    expected = virtual(programs, router, 8)
    assert decisions(lines) == decisions(expected)
    assert held_s(lines) == pytest.approx(held_s(expected), abs=0.08)
    assert {key for key, s in held_s(lines).items() if s} == {("a", 2), ("c", 0)}
    assert held_s(lines)["c", 0] == pytest.approx(1.32 - 0.4, abs=0.08)
    for line in lines:
        assert line["queue_s"] >= line["held_s"]
        parts = line["queue_s"] + line["prefill_s"] + line["decode_s"]
        assert parts == pytest.approx(line["finished_at_s"] - line["sent_at_s"])
