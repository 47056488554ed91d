"""Engines that compute prompts and engines that decode: times by hand, and the invariants of a
fleet."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.virtual import Replay, replay
from servers.records.done import DoneRecord
from servers.records.turns import EventRecord
from servers.routers.round_robin import RoundRobin
from servers.routers.sticky import Sticky
from servers.sim import DisaggregatedFleet, Engine, Limits, Transfer
from tests.lines import into
from tests.sim.accounts import check_blocks
from tests.sim.test_engine_invariants import policy_for
from tests.sim.test_fleet import ROUTERS, Build, world_of
from tests.sim.worlds import World, profile, worlds
from traces import Program, Provenance, Turn

PINS_FOR_3_S = "tests.compiled.derived:ShortPromptsFirst"
MB_PER_S = Transfer(1e6)
"""A token has 1,000 bytes, so a block of 16 takes 16 ms."""


def build(
    world: World,
    policy: str = "fcfs",
    router: Build = Sticky,
    engines: tuple[int, int] = (1, 1),
    transfer: Transfer = MB_PER_S,
    *,
    strides: bool = True,
    events: list[EventRecord] | None = None,
) -> partial[DisaggregatedFleet]:
    """`engines`: numbers of prefill and of decode engines."""
    each = [
        partial(
            Engine,
            policy_for(policy, world.profile, world.limits.step_tokens, offload=False),
            world.profile,
            world.limits,
            on_event=None if events is None else events.append,
            strides=strides,
        )
        for _ in range(sum(engines))
    ]
    return partial(DisaggregatedFleet, router, each[: engines[1]], each[engines[1] :], transfer)


def play(world: World, *args: Any, **options: Any) -> tuple[list[dict[str, Any]], DoneRecord]:
    turns: list[dict[str, Any]] = []
    fleet = build(world, *args, **options)
    done = replay(world.programs, world.starts_s, None, fleet, into(turns))
    return turns, done


def program(name: str, *turns: tuple[int, int, int], gap_s: float = 1.0) -> Program:
    """Each turn has prompt tokens, output tokens, and how many of the prompt the last one had."""
    made = [Turn(*turn, (), None, gap_s, Provenance.SYNTHESISED) for turn in turns]
    return Program(name, tuple(made))


def test_the_kv_of_a_prompt_is_transferred_before_its_first_token() -> None:
    """1,000 tokens take 1 + 1,000 · 0.09 ms and 500,500 pairs · 3 ns on the prefill engine. They
    are 63 blocks of 16,000 bytes, so that a link of 1 MB/s takes 1.008 s. The decode engine then
    computes the last token, which reads 1,000 pairs: 1 + 9 ms + 1,000 · 3 ns."""
    world = world_of([program("p", (1000, 1, 0))], kv_blocks=100)
    (turn,), _ = play(world)
    assert turn["prefill_s"] == pytest.approx(0.0925015 + 0.010003)
    assert (turn["queue_s"], turn["decode_queue_s"]) == (0, 0)
    assert turn["transfer_s"] == pytest.approx(1.008)
    assert turn["transfer_tokens"] == 1000
    assert turn["finished_at_s"] == turn["first_token_at_s"]
    assert turn["first_token_at_s"] == pytest.approx(0.0925015 + 1.008 + 0.010003)
    assert (turn["prefill_replica"], turn["replica"]) == (1, 0)


def test_a_latency_delays_the_first_byte() -> None:
    world = world_of([program("p", (1000, 1, 0))], kv_blocks=100)
    (turn,), _ = play(world, transfer=Transfer(1e6, latency_s=0.25))
    assert turn["transfer_s"] == pytest.approx(1.258)


def test_only_the_blocks_that_the_decode_engine_lacks_are_transferred() -> None:
    """After the first turn the prefill engine has 62 full blocks of its prompt, and the decode
    engine 63 of the prompt and 15 of 16 answered tokens. The next prompt has 69, six more."""
    world = world_of([program("p", (1000, 16, 0), (1100, 1, 1016))], kv_blocks=100)
    (_, turn), _ = play(world)
    assert turn["device_hit_tokens"] == 62 * 16
    assert turn["transfer_tokens"] == 1100 - 63 * 16
    assert turn["transfer_s"] == pytest.approx(6 * 0.016)


def test_transfers_of_one_prefill_engine_follow_each_other() -> None:
    """Two prompts of 160 tokens, which are computed in one step and take 160 ms each to send."""
    made = [program("p", (160, 1, 0)), program("q", (160, 1, 0))]
    both, _ = play(world_of(made, kv_blocks=100, apart_s=0.0), engines=(1, 2))
    assert [turn["transfer_s"] for turn in both] == pytest.approx([0.16, 0.32])
    own, _ = play(world_of(made, kv_blocks=100, apart_s=0.0), engines=(2, 2))
    assert [turn["transfer_s"] for turn in own] == pytest.approx([0.16, 0.16])


def test_a_transfer_waits_until_the_decode_engine_has_room_and_nothing_deadlocks() -> None:
    """Engines of 12 blocks. Each prompt has 10, so that one is decoded at a time; another keeps the
    memory of the prefill engine meanwhile, and the third cannot be computed."""
    made = [program(name, (160, 20, 0)) for name in "pqr"]
    turns, done = play(world_of(made, kv_blocks=12, apart_s=0.0))
    assert done.finished_programs == 3
    first, second, third = turns
    assert first["decode_queue_s"] == 0
    # The second prompt fits when the first has been sent, and waits for the end of the first turn.
    handed_over_s = second["finished_at_s"] - second["decode_s"] - second["transfer_s"]
    assert second["decode_queue_s"] > 0
    assert third["queue_s"] > 0
    assert handed_over_s > first["finished_at_s"] - 0.011
    for turn in turns:
        assert turn["finished_at_s"] - turn["sent_at_s"] == pytest.approx(parts(turn))


def test_a_turn_that_is_preempted_in_its_decode_engine_is_recomputed_there() -> None:
    """Two turns of 4 blocks grow to 6 each in a decode engine of 10, so that one is preempted."""
    made = [program(name, (64, 30, 0)) for name in "pq"]
    turns, _ = play(world_of(made, kv_blocks=10, apart_s=0.0))
    assert sum(turn["preemptions"] for turn in turns) == 1
    (again,) = [turn for turn in turns if turn["preemptions"]]
    assert again["recompute_s"] > 0
    assert again["transfer_tokens"] == 64
    assert again["finished_at_s"] - again["sent_at_s"] == pytest.approx(parts(again))


def test_the_prefill_engine_frees_a_prompt_when_it_was_sent() -> None:
    """The second prompt of 7 blocks does not fit beside the first in a prefill engine of 12, and
    is admitted when the first has been sent and its decode engine computes the last token."""
    made = [program(name, (112, 1, 0)) for name in "pq"]
    turns, _ = play(world_of(made, kv_blocks=12, apart_s=0.0))
    first, second = turns
    sent_s = first["first_token_at_s"] - 0.010 - 112 * 3e-9
    assert second["queue_s"] == pytest.approx(sent_s)


def parts(turn: dict[str, Any]) -> float:
    names = ("queue", "load", "prefill", "decode_queue", "transfer", "decode", "preempted")
    return sum(turn[f"{name}_s"] for name in names) + float(turn["recompute_s"])


SPLITS = st.tuples(st.integers(1, 2), st.integers(1, 2))
LINKS = st.builds(Transfer, st.sampled_from([2e4, 1e6, 1e12]), st.sampled_from([0.0, 0.03]))
NAMES = ("sticky", "round-robin", "prefix-aware", "thunderagent", "program-scheduling")


@given(
    world=worlds(offload=False),
    split=SPLITS,
    link=LINKS,
    name=st.sampled_from(NAMES),
    policy=st.sampled_from(["fcfs", "continuum", "turnstile", "infercept", "autellix"]),
)
def test_every_program_finishes_and_strides_change_nothing(
    world: World, split: tuple[int, int], link: Transfer, name: str, policy: str
) -> None:
    events: list[EventRecord] = []
    turns, done = play(world, policy, ROUTERS[name], split, link, events=events)
    assert done.finished_programs == len(world.programs)
    single_events: list[EventRecord] = []
    single_turns, single_done = play(
        world, policy, ROUTERS[name], split, link, strides=False, events=single_events
    )
    assert turns == single_turns
    assert events == single_events
    assert (done.virtual_s, done.steps) == (single_done.virtual_s, single_done.steps)
    for turn in turns:
        assert turn["finished_at_s"] - turn["sent_at_s"] == pytest.approx(parts(turn), abs=1e-9)
        assert 1 <= turn["transfer_tokens"] <= turn["prompt_tokens"]


@given(
    world=worlds(offload=False),
    split=SPLITS,
    policy=st.sampled_from(["fcfs", "static-ttl", "turnstile"]),
)
def test_no_engine_loses_a_block_and_nothing_is_kept_to_be_sent(
    world: World, split: tuple[int, int], policy: str
) -> None:
    fleet = build(world, policy, RoundRobin, split)
    ran = Replay(world.programs, fleet, lambda _: None, oracle=False)
    ran.engine.run(ran.starting(world.starts_s, None))
    assert isinstance(ran.engine, DisaggregatedFleet)
    for engine in ran.engine.engines:
        check_blocks(engine.scheduler)
        assert engine.scheduler.kv.used == engine.scheduler.runner.pins.blocks
        assert not engine.scheduler.sending
        assert not len(engine.scheduler.runner.waiting)


def test_a_prefill_engine_keeps_a_pin_through_a_tool_gap() -> None:
    """Engines of 20 blocks. In the gap after p's first turn of 10 blocks, q and r compute 8 each in
    the prefill engine: 10 are blank, and then the oldest are evicted, which are 6 of p's unless
    they are pinned."""
    made = [
        program("p", (160, 1, 0), (170, 1, 161)),
        program("q", (128, 1, 0)),
        program("r", (128, 1, 0)),
    ]
    world = World(made, [0.0, 0.4, 0.7], profile(20), Limits(), None)
    hits = {}
    for policy in (PINS_FOR_3_S, "fcfs"):
        turns, _ = play(world, policy)
        (hits[policy],) = [turn["device_hit_tokens"] for turn in turns if turn["turn"]]
    assert hits == {PINS_FOR_3_S: 160, "fcfs": 64}
