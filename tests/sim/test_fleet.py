"""Several replicas behind a router: the decisions are those of single steps, whoever decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from harness.replay.virtual import Replay, replay
from servers.basics.errors import InvalidRouter
from servers.records.done import DoneRecord
from servers.routers.base import Replica, RoutedTurn, Router
from servers.routers.least_loaded import LeastLoaded
from servers.routers.prefix_aware import PrefixAware
from servers.routers.program_scheduling import ProgramScheduling
from servers.routers.round_robin import RoundRobin
from servers.routers.runner import MOST_HELD_S
from servers.routers.sticky import Sticky
from servers.routers.thunderagent import ThunderAgent
from servers.routing import ROUTERS as REGISTERED
from servers.routing import named_router
from servers.sim import Engine, Limits
from servers.sim.fleet import Fleet
from servers.sim.sequence import Sequence as Served
from tests.lines import into
from tests.sim.accounts import check_blocks
from tests.sim.test_engine_invariants import policy_for, run
from tests.sim.worlds import World, profile, worlds
from traces import Program, Provenance, Turn

Build = Callable[[Sequence[Replica]], Router]
ROUTERS: dict[str, Build] = {
    **{name: named_router(name) for name in REGISTERED.built_in},
    "least-loaded(load=kv)": partial(LeastLoaded, load="kv", report_s=0.3),
    "least-loaded(load=kv,report_s=0)": partial(LeastLoaded, load="kv", report_s=0.0),
    "prefix-aware": partial(PrefixAware, balance_turns=1),
    "thunderagent": partial(ThunderAgent, interval_s=0.25),
    "thunderagent(order=arrival)": partial(ThunderAgent, interval_s=0.25, order="arrival"),
    "program-scheduling": partial(
        ProgramScheduling,
        metrics_interval_s=0.11,
        stats_window_size=2,
        max_segment_rounds=2,
        force_resume_timeout_s=0.5,
    ),
    "program-scheduling(global_queue=true)": partial(
        ProgramScheduling,
        global_queue=True,
        binding_strategy="reasoning_token_balance",
        metrics_interval_s=0.11,
        stats_window_size=2,
        low_watermark_ratio=0.8,
    ),
}
POLICIES = ("fcfs", "continuum", "turnstile", "infercept+")


def build(
    world: World, policy: str, router: Build, replicas: int, *, strides: bool = True
) -> partial[Fleet]:
    offload = world.offload if "+" in policy else None
    engines = [
        partial(
            Engine,
            policy_for(policy, world.profile, world.limits.step_tokens, bool(offload)),
            world.profile,
            world.limits,
            offload,
            strides=strides,
        )
        for _ in range(replicas)
    ]
    return partial(Fleet, router, engines)


def play(
    world: World, policy: str, router: Build, replicas: int, *, strides: bool = True
) -> tuple[list[dict[str, Any]], DoneRecord]:
    turns: list[dict[str, Any]] = []
    fleet = build(world, policy, router, replicas, strides=strides)
    done = replay(world.programs, world.starts_s, None, fleet, into(turns))
    return turns, done


@pytest.mark.parametrize("name", ROUTERS)
@settings(max_examples=settings().max_examples // 3)
@given(world=worlds(offload=True), replicas=st.integers(2, 3), policy=st.sampled_from(POLICIES))
def test_every_program_finishes_and_strides_change_nothing(
    name: str, world: World, replicas: int, policy: str
) -> None:
    turns, done = play(world, policy, ROUTERS[name], replicas)
    assert done.finished_programs == len(world.programs)
    single_turns, single_done = play(world, policy, ROUTERS[name], replicas, strides=False)
    assert turns == single_turns
    assert done.virtual_s == single_done.virtual_s
    assert done.steps == single_done.steps


@given(world=worlds(offload=True), policy=st.sampled_from(POLICIES))
def test_one_replica_behind_a_router_is_an_engine_without_one(world: World, policy: str) -> None:
    turns, done = play(world, policy, RoundRobin, replicas=1)
    for turn in turns:
        assert (turn.pop("replica"), turn.pop("held_s")) == (0, 0.0)
    world = world if "+" in policy else World(*world_fields(world), offload=None)
    alone_turns, _, alone_done = run(world, policy)
    assert done.replica_blocks == [(usage[1],) for usage in done.usage]
    done.replica_blocks = None
    assert turns == alone_turns
    assert structs.replace(done, strides=alone_done.strides) == alone_done


def world_fields(world: World) -> tuple[Any, ...]:
    return world.programs, world.starts_s, world.profile, world.limits


@given(world=worlds(), name=st.sampled_from(list(ROUTERS)), policy=st.sampled_from(POLICIES[:3]))
def test_no_replica_loses_a_block_and_all_are_free_at_the_end(
    world: World, name: str, policy: str
) -> None:
    ran = Replay(
        world.programs, build(world, policy, ROUTERS[name], 3), lambda _: None, oracle=False
    )
    ran.engine.run(ran.starting(world.starts_s, None))
    assert isinstance(ran.engine, Fleet)
    for engine in ran.engine.engines:
        check_blocks(engine.scheduler)
        assert engine.scheduler.kv.used == engine.scheduler.runner.pins.blocks
        assert not len(engine.scheduler.runner.waiting)
    assert [replica.turns for replica in ran.engine.replicas] == [0, 0, 0]


@given(world=worlds(offload=True), name=st.sampled_from(list(ROUTERS)))
def test_the_usage_of_a_fleet_is_the_sum_of_its_engines_at_any_end_of_a_turn(
    world: World, name: str
) -> None:
    fleet_of = build(world, "infercept+", ROUTERS[name], 3)
    ran = Replay(world.programs, fleet_of, lambda _: None, oracle=False)
    fleet = ran.engine
    assert isinstance(fleet, Fleet)
    ended, sampled = fleet._on_end, 0

    def check(served: Served) -> None:
        nonlocal sampled
        sampled += 1
        each, total = [engine.usage() for engine in fleet.engines], fleet.usage()
        for field in ("used_blocks", "pinned_blocks", "running", "dram_blocks", "ssd_blocks"):
            assert getattr(total, field) == sum(getattr(usage, field) for usage in each), field
        held = len(fleet._front.runner.held)
        assert total.waiting == sum(usage.waiting for usage in each) + held
        assert total.replica_blocks == tuple(usage.used_blocks for usage in each)
        ended(served)

    fleet._on_end = check
    fleet.run(ran.starting(world.starts_s, None))
    assert sampled == sum(len(program.turns) for program in world.programs)


@given(
    world=worlds(offload=True),
    policy=st.sampled_from(POLICIES),
    report_s=st.sampled_from((0.0, 0.2)),
)
def test_a_report_has_the_load_that_each_engine_has_then(
    world: World, policy: str, report_s: float
) -> None:
    reported = 0

    class Checking(LeastLoaded):
        def route(self, turn: RoutedTurn, now_s: float) -> int | None:
            nonlocal reported
            for replica, engine in zip(self.replicas, fleet.engines, strict=True):
                if replica.reported_s == now_s:
                    reported += 1
                    assert replica.running == len(engine.scheduler.running)
                    assert replica.waiting == len(engine.scheduler.runner.waiting)
                    used = engine.used_blocks_at(fleet.now_ps) * engine.profile.block_tokens
                    assert replica.used_tokens == used
            return super().route(turn, now_s)

    router = partial(Checking, load="kv", report_s=report_s)
    ran = Replay(world.programs, build(world, policy, router, 3), lambda _: None, oracle=False)
    fleet = ran.engine
    assert isinstance(fleet, Fleet)
    fleet.run(ran.starting(world.starts_s, None))
    turns = sum(len(program.turns) for program in world.programs)
    assert reported == 3 * turns or report_s


def programs(count: int, turns: int, tokens: int = 64, gap_s: float = 1.0) -> list[Program]:
    """Programs of which each turn adds `tokens` tokens and answers with 16."""
    made = []
    for number in range(count):
        each, context = [], 0
        for _ in range(turns):
            prompt = context + tokens
            each.append(Turn(prompt, 16, context, (), None, gap_s, Provenance.SYNTHESISED))
            context = prompt + 16
        made.append(Program(f"p{number}", tuple(each)))
    return made


def world_of(made: list[Program], kv_blocks: int, apart_s: float = 0.1) -> World:
    starts_s = [apart_s * number for number in range(len(made))]
    return World(made, starts_s, profile(kv_blocks), Limits(), None)


def test_a_sticky_program_finds_all_of_its_kv_and_a_scattered_one_does_not() -> None:
    world = world_of(programs(4, turns=5), kv_blocks=400)
    sticky, _ = play(world, "fcfs", Sticky, 2)
    scattered, _ = play(world, "fcfs", RoundRobin, 3)
    for turn in sticky:
        assert turn["device_hit_tokens"] == (turn["kept_tokens"] - 1) // 16 * 16 or not turn["turn"]
    homes = {turn["program_id"]: {t["replica"] for t in sticky} for turn in sticky}
    assert all(len(replicas) == 2 for replicas in homes.values()), "both replicas are used"
    assert sum(t["device_hit_tokens"] for t in scattered) < sum(
        t["device_hit_tokens"] for t in sticky
    )


def test_a_prefix_aware_router_sends_a_turn_where_its_context_is() -> None:
    world = world_of(programs(6, turns=5), kv_blocks=400)
    turns, _ = play(world, "fcfs", PrefixAware, 3)
    homes: dict[str, set[int]] = {}
    for turn in turns:
        homes.setdefault(turn["program_id"], set()).add(turn["replica"])
    assert {len(replicas) for replicas in homes.values()} == {1}
    assert set().union(*homes.values()) == {0, 1, 2}


def test_thunderagent_holds_programs_back_that_do_not_fit() -> None:
    """Two replicas of 20 blocks, 320 tokens. A new program of 150 tokens needs 250, so that each
    replica takes one, and the third waits until 5 s, when the first two have ended."""
    made = programs(3, turns=1, tokens=150)
    turns, _ = play(world_of(made, kv_blocks=20, apart_s=0.05), "fcfs", ThunderAgent, 2)
    held = {turn["program_id"]: turn["held_s"] for turn in turns}
    assert held["p0"] == held["p1"] == 0
    assert held["p2"] == pytest.approx(5 - 0.1)


class Late(Router):
    """Sends each turn 3 s after it has arrived."""

    name = "late"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self.held: list[RoutedTurn] = []
        self.cached: list[int] = []

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        self.held.append(turn)
        return None

    def wake_s(self, now_s: float) -> float | None:
        return self.held[0].arrival_s + 3 if self.held else None

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        due_s = self.wake_s(now_s)
        return [(self.held.pop(0), 0)] if due_s is not None and due_s <= now_s else ()

    def finished(self, turn: RoutedTurn, now_s: float) -> None:
        self.cached.append(turn.cached_tokens)


def test_a_router_is_woken_when_it_asks_and_learns_how_many_tokens_were_cached() -> None:
    """The first turn leaves the KV of 64 + 15 tokens, of which the second finds 4 blocks of 16."""
    routers: list[Late] = []

    def build_late(replicas: Sequence[Replica]) -> Router:
        routers.append(Late(replicas))
        return routers[0]

    turns, _ = play(world_of(programs(1, turns=2), kv_blocks=100), "fcfs", build_late, 2)
    assert [turn["held_s"] for turn in turns] == pytest.approx([3, 3], abs=1e-9)
    assert routers[0].cached == [turn["device_hit_tokens"] for turn in turns] == [0, 64]


class Never(Router):
    name = "never"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        return None


class Elsewhere(Router):
    name = "elsewhere"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        return 7


class Ticking(Never):
    period_s = 60.0


@pytest.mark.parametrize(
    ("router", "message"),
    [
        (Never, "never holds back 1 turns forever"),
        (Ticking, "never holds back 1 turns forever"),
        (Elsewhere, "elsewhere sends a turn of p0 to replica 7; there are 2"),
    ],
)
def test_a_router_that_breaks_its_contract_ends_the_run(router: Build, message: str) -> None:
    with pytest.raises(InvalidRouter, match=message):
        play(world_of(programs(1, turns=1), kv_blocks=100), "fcfs", router, 2)


def test_a_router_may_hold_turns_back_for_an_hour_while_all_replicas_are_idle() -> None:
    class Slow(Ticking):
        held_s = MOST_HELD_S - 60

        def __init__(self, replicas: Sequence[Replica]) -> None:
            super().__init__(replicas)
            self.held: list[RoutedTurn] = []

        def route(self, turn: RoutedTurn, now_s: float) -> int | None:
            self.held.append(turn)
            return None

        def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
            due = [turn for turn in self.held if now_s >= turn.arrival_s + self.held_s]
            self.held = [turn for turn in self.held if turn not in due]
            return [(turn, 0) for turn in due]

    class TooSlow(Slow):
        held_s = MOST_HELD_S + 60

    world = world_of(programs(1, turns=1), kv_blocks=100)
    turns, _ = play(world, "fcfs", Slow, 2)
    assert [turn["held_s"] for turn in turns] == [MOST_HELD_S - 60]
    with pytest.raises(InvalidRouter, match="forever"):
        play(world, "fcfs", TooSlow, 2)
