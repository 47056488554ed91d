"""Stages of layers: times by hand, and the invariants of an engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.replay.virtual import Replay, replay
from servers.profiles import Profile
from servers.profiles.layout import Stages
from servers.routers.round_robin import RoundRobin
from servers.sim import Fleet, Limits, PipelineEngine
from servers.variants import Variant, variants
from tests.lines import into
from tests.sim.accounts import check_blocks
from tests.sim.test_engine_invariants import check_parts, policy_for, run
from tests.sim.test_fleet import POLICIES
from tests.sim.worlds import World, profile, worlds
from traces import Program, Provenance, Turn

MS = 1_000_000_000
TWO = Stages(2, 0, 0)
EVEN: dict[str, Any] = {"context_ps": 0, "pair_ps": 0}
"""A step of up to 100 tokens takes 10 ms in each stage."""
WITHOUT_TIER = [variant for variant in variants("all") if "tier" not in variant.needs]


def build(world: World, policy: str = "fcfs", stages: Stages = TWO) -> partial[PipelineEngine]:
    each = policy_for(policy, world.profile, world.limits.step_tokens, offload=False)
    return partial(PipelineEngine, each, world.profile, world.limits, stages)


def played(world: World, *args: Any) -> tuple[list[dict[str, Any]], Any]:
    turns: list[dict[str, Any]] = []
    engine = build(world, *args)
    return turns, replay(world.programs, world.starts_s, None, engine, into(turns))


def times_ms(
    sizes: list[tuple[int, int]],
    starts_ms: list[int],
    machine: Profile,
    stages: Stages = TWO,
    step_tokens: int = 2048,
) -> list[tuple[float, float, int]]:
    """Return of each program of one turn, with these prompt and output tokens, when its first and
    last token appear, and how often it was preempted."""
    programs = [
        Program(str(i), (Turn(prompt, output, 0, (), None, 0.0, Provenance.SYNTHESISED),))
        for i, (prompt, output) in enumerate(sizes)
    ]
    starts_s = [start / 1000 for start in starts_ms]
    turns, _ = played(
        World(programs, starts_s, machine, Limits(16, step_tokens), None), "fcfs", stages
    )
    turns.sort(key=lambda turn: str(turn["program_id"]))
    return [
        (
            round(turn["first_token_at_s"] * 1000, 6),
            round(turn["finished_at_s"] * 1000, 6),
            turn["preemptions"],
        )
        for turn in turns
    ]


def test_each_token_passes_all_stages_and_is_sent_between_them() -> None:
    """A prompt of 20 tokens takes 10 ms in each of two stages, and 1 ms + 20 · 0.1 ms between them;
    a decode takes 10 + 1.1 + 10."""
    stages = Stages(2, MS, MS // 10)
    assert times_ms([(20, 3)], [0], profile(400, **EVEN), stages) == [
        (23, pytest.approx(23 + 2 * 21.1), 0)
    ]


def test_chunks_of_a_prompt_are_computed_in_all_stages_at_a_time() -> None:
    """Four chunks enter the first stage every 10 ms; the last one leaves the second stage at 50."""
    assert times_ms([(64, 1)], [0], profile(400, **EVEN), step_tokens=16) == [(50, 50, 0)]


def test_turns_whose_prompts_are_computed_together_decode_together() -> None:
    """So the second stage waits for the first one, as with one turn."""
    same = times_ms([(20, 3), (30, 3)], [0, 0], profile(400, **EVEN))
    assert same == [(20, 60, 0), (20, 60, 0)]


def test_a_turn_that_arrives_during_a_step_decodes_in_the_other_group() -> None:
    """With asynchronous scheduling, the second turn joins the step after the next one: it enters
    the first stage at 30, behind the first decode, and both stages are busy from then on."""
    ahead = profile(400, **EVEN, schedules_ahead=True)
    assert times_ms([(20, 3), (20, 2)], [0, 5], ahead) == [(20, 60, 0), (50, 70, 0)]


def test_a_preempted_turn_gets_the_token_that_was_being_computed() -> None:
    """Three blocks: the first turn needs the third for its 33rd token, which is scheduled at 340.
    The second turn is preempted; its 16th and last token, scheduled at 330, ends at 350."""
    ahead = profile(3, **EVEN, schedules_ahead=True)
    assert times_ms([(16, 20), (1, 16)], [0, 5], ahead) == [(20, 400, 0), (50, 350, 1)]


@pytest.mark.parametrize("variant", WITHOUT_TIER, ids=lambda variant: variant.name)
@settings(max_examples=settings().max_examples // 3)
@given(world=worlds(offload=False), count=st.integers(2, 4))
def test_every_program_finishes_and_no_block_is_lost(
    variant: Variant, world: World, count: int
) -> None:
    turns: list[dict[str, object]] = []
    engine = build(world, variant.name, Stages(count, MS, 0))
    ran = Replay(world.programs, engine, into(turns), oracle=bool(variant.reference))
    ran.engine.run(ran.starting(world.starts_s, None))
    assert isinstance(ran.engine, PipelineEngine)
    check_blocks(ran.engine.scheduler)
    assert ran.engine.scheduler.kv.used == ran.engine.scheduler.runner.pins.blocks
    assert not ran.engine.scheduler.pipelined.undelivered
    check_parts(turns)


@given(world=worlds(offload=False), policy=st.sampled_from(POLICIES[:3]))
def test_one_stage_is_an_engine_in_single_steps(world: World, policy: str) -> None:
    turns, done = played(world, policy, Stages(1, 0, 0))
    alone_turns, _, alone_done = run(world, policy, strides=False)
    assert turns == alone_turns
    assert (done.virtual_s, done.steps) == (alone_done.virtual_s, alone_done.steps)


@given(world=worlds(offload=False), policy=st.sampled_from(POLICIES[:3]))
def test_replicas_with_stages_finish_every_program(world: World, policy: str) -> None:
    turns: list[dict[str, Any]] = []
    fleet = partial(Fleet, RoundRobin, [build(world, policy), build(world, policy)])
    done = replay(world.programs, world.starts_s, None, fleet, into(turns))
    assert done.finished_programs == len(world.programs)
