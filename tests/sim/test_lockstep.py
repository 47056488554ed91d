"""Ranks that compute their steps together: times by hand, and the invariants of a fleet."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.replay.virtual import Replay, replay
from servers.profiles.layout import ExpertTimes
from servers.records.done import DoneRecord
from servers.routers.round_robin import RoundRobin
from servers.sim import Engine, Limits, LockstepFleet
from servers.sim.lockstep import common_pace
from servers.sim.strides import Pace
from tests.lines import into
from tests.sim.accounts import check_blocks
from tests.sim.test_engine_invariants import policy_for, run
from tests.sim.test_fleet import POLICIES, ROUTERS, Build, world_fields
from tests.sim.worlds import World, profile, worlds
from traces import Program, Provenance, Turn

EXPERTS = ExpertTimes(((1, 1_000_000_000),), 10_000_000)
"""1 ms for one token, and 10 µs for each further one."""
NONE = ExpertTimes(((1, 0),), 0)


def build(
    world: World,
    policy: str,
    router: Build = RoundRobin,
    ranks: int = 2,
    experts: ExpertTimes = EXPERTS,
    *,
    strides: bool = True,
) -> partial[LockstepFleet]:
    offload = world.offload if "+" in policy else None
    each = partial(
        Engine,
        profile=world.profile,
        limits=world.limits,
        offload=offload,
        strides=strides,
    )
    engines = [
        partial(each, policy_for(policy, world.profile, world.limits.step_tokens, bool(offload)))
        for _ in range(ranks)
    ]
    return partial(LockstepFleet, router, engines, experts)


def play(
    world: World, policy: str = "fcfs", **options: Any
) -> tuple[list[dict[str, Any]], DoneRecord]:
    turns: list[dict[str, Any]] = []
    fleet = build(world, policy, **options)
    done = replay(world.programs, world.starts_s, None, fleet, into(turns))
    return turns, done


def times_ms(starts_ms: list[float], **options: Any) -> list[tuple[float, float]]:
    """Return when the first token and the last one of two turns appear: of one with a prompt of 200
    tokens and 2 tokens of output, and of one with 20 and 3."""
    made = [
        Program(name, (Turn(prompt, output, 0, (), None, 0.0, Provenance.SYNTHESISED),))
        for name, prompt, output in (("long", 200, 2), ("short", 20, 3))
    ]
    starts_s = [start / 1000 for start in starts_ms]
    turns, _ = play(World(made, starts_s, profile(400), Limits(), None), **options)
    turns.sort(key=lambda turn: str(turn["program_id"]))
    return [(t["first_token_at_s"] * 1000, t["finished_at_s"] * 1000) for t in turns]


@pytest.mark.parametrize("strides", [True, False])
def test_a_step_takes_what_the_slowest_rank_has_of_its_own_and_the_experts_of_all_tokens(
    *, strides: bool
) -> None:
    """Alone, the long prompt takes 1 + 200 · 0.09 + 20,100 · 0.000003 = 19.0603 ms, of which the
    experts take 1 + 199 · 0.01 = 2.99; those of all 220 tokens take 3.19. A decode after it takes
    10 + 201 · 0.00008 = 10.01608, with experts for two tokens 0.01 more; the last one is alone."""
    prompts = 19.0603 - 2.99 + 3.19
    decodes, last = 10.01608 + 0.01, 10 + 22 * 0.00008
    long, short = times_ms([0, 0], strides=strides)
    assert long == pytest.approx((prompts, prompts + decodes))
    assert short == pytest.approx((prompts, prompts + decodes + last))


def test_a_turn_that_comes_to_an_idle_rank_waits_for_the_step_of_the_others() -> None:
    """The short prompt arrives 5 ms after the long one. With a decode of 10.01608 ms, of which
    experts take 1, it needs experts for 21 tokens."""
    long, short = times_ms([0, 5])
    assert long[0] == pytest.approx(19.0603)
    assert short[0] == pytest.approx(19.0603 + 10.01608 - 1 + 1.2)


def test_steps_that_are_computed_at_once_end_before_another_rank_becomes_the_slowest() -> None:
    """90 + 3 · i exceeds 100 for the first time with i = 4."""
    paces = [Pace(10, 100, 0, 1), Pace(9, 90, 3, 1)]
    assert common_pace(paces, NONE) == Pace(4, 100, 0, 2)
    assert common_pace(paces[::-1], NONE) == Pace(4, 100, 0, 2)
    assert common_pace([Pace(10, 100, 3, 1), Pace(9, 90, 3, 1)], NONE) == Pace(9, 100, 3, 2)


@pytest.mark.parametrize("name", ["sticky", "least-loaded(load=kv)", "thunderagent"])
@settings(max_examples=settings().max_examples // 3)
@given(world=worlds(offload=True), ranks=st.integers(2, 3), policy=st.sampled_from(POLICIES))
def test_every_program_finishes_and_strides_change_nothing(
    name: str, world: World, ranks: int, policy: str
) -> None:
    turns, done = play(world, policy, router=ROUTERS[name], ranks=ranks)
    assert done.finished_programs == len(world.programs)
    single, single_done = play(world, policy, router=ROUTERS[name], ranks=ranks, strides=False)
    assert turns == single
    assert (done.virtual_s, done.steps) == (single_done.virtual_s, single_done.steps)


@given(world=worlds(), policy=st.sampled_from(POLICIES[:3]))
def test_one_rank_is_an_engine(world: World, policy: str) -> None:
    world = World(*world_fields(world), offload=None)
    turns, done = play(world, policy, ranks=1)
    for turn in turns:
        del turn["replica"], turn["held_s"]
    alone_turns, _, alone_done = run(world, policy)
    assert turns == alone_turns
    assert (done.virtual_s, done.steps) == (alone_done.virtual_s, alone_done.steps)


@given(world=worlds(), policy=st.sampled_from(POLICIES[:3]))
def test_no_rank_loses_a_block(world: World, policy: str) -> None:
    ran = Replay(world.programs, build(world, policy), lambda _: None, oracle=False)
    ran.engine.run(ran.starting(world.starts_s, None))
    assert isinstance(ran.engine, LockstepFleet)
    for engine in ran.engine.engines:
        check_blocks(engine.scheduler)
        assert engine.scheduler.kv.used == engine.scheduler.runner.pins.blocks
