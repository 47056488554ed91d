"""Invariants for every workload, machine and policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import structs

from harness.replay.virtual import Replay, replay
from servers.policies.base import Policy
from servers.profiles import Profile, costs
from servers.records.done import DoneRecord
from servers.sim import Engine, Limits, Sequence
from servers.variants import make_policy, variants
from tests.lines import into
from tests.sim.accounts import check_blocks
from tests.sim.worlds import World, profile, worlds

VARIANTS = [v.name for v in variants("all")]
HOLDS_BACK = "tests.sim.holding:HoldsBack"
EAGER = (
    "thunderagent(interval_s=0.05)",
    "progress-ttl(most_rounds=2,resume_after_s=0.5,window=2)",
)
"""Policies with settings that matter in worlds of a few seconds."""
FEW_EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def policy_for(name: str, profile: Profile, step_tokens: int, offload: bool) -> Policy:
    variant = variants(name)[0]
    return make_policy(variant, costs(profile, step_tokens=step_tokens, offload=offload))


def run(
    world: World, name: str, *, strides: bool = True
) -> tuple[list[dict[str, object]], list[dict[str, object]], DoneRecord]:
    turns: list[dict[str, object]] = []
    events: list[dict[str, object]] = []
    oracle = bool(variants(name)[0].reference)
    engine = partial(
        Engine,
        policy_for(name, world.profile, world.limits.step_tokens, bool(world.offload)),
        world.profile,
        world.limits,
        world.offload,
        on_event=into(events),
        strides=strides,
    )
    done = replay(world.programs, world.starts_s, None, engine, into(turns), oracle=oracle)
    return turns, events, done


@pytest.mark.parametrize("name", [*VARIANTS, *EAGER, HOLDS_BACK])
@FEW_EXAMPLES
@given(world=worlds())
def test_every_program_finishes_and_strides_change_nothing(name: str, world: World) -> None:
    turns, events, done = run(world, name)
    assert done.finished_programs == len(world.programs)
    assert done.failed_turns == 0
    single_turns, single_events, single_done = run(world, name, strides=False)
    assert turns == single_turns
    assert events == single_events
    assert structs.replace(done, strides=single_done.strides) == single_done


@pytest.mark.parametrize("name", [*VARIANTS, HOLDS_BACK])
@FEW_EXAMPLES
@given(world=worlds())
def test_no_block_is_lost_and_all_are_free_at_the_end(name: str, world: World) -> None:
    engines: list[Engine] = []

    def build(*, on_end: Callable[[Sequence], None]) -> Engine:
        def ended(sequence: Sequence) -> None:
            check_blocks(engine.scheduler)
            on_end(sequence)

        engine = Engine(
            policy_for(name, world.profile, world.limits.step_tokens, bool(world.offload)),
            world.profile,
            world.limits,
            world.offload,
            on_end=ended,
        )
        engines.append(engine)
        return engine

    replaying = Replay(
        world.programs, build, lambda _: None, oracle=bool(variants(name)[0].reference)
    )
    engines[0].run(replaying.starting(world.starts_s, None))
    scheduler = engines[0].scheduler
    check_blocks(scheduler)
    assert len(scheduler.runner.pins) == 0
    assert scheduler.kv.used == 0


@pytest.mark.parametrize("name", VARIANTS)
@FEW_EXAMPLES
@given(world=worlds())
def test_parts_of_a_turns_time_sum_to_it_and_parts_of_a_jobs_to_its_jct(
    name: str, world: World
) -> None:
    turns, _, _ = run(world, name)
    parts = ("queue_s", "load_s", "prefill_s", "decode_s", "preempted_s", "recompute_s")
    jobs: dict[object, list[dict[str, object]]] = {}
    for turn in turns:
        duration_s = turn["finished_at_s"] - turn["sent_at_s"]  # type: ignore[operator]
        assert sum(turn[p] for p in parts) == pytest.approx(duration_s, abs=1e-9)  # type: ignore[misc]
        jobs.setdefault(turn["program_id"], []).append(turn)
    for own in jobs.values():
        own.sort(key=lambda t: t["turn"])  # type: ignore[arg-type, return-value]
        jct = own[-1]["finished_at_s"] - own[0]["sent_at_s"]  # type: ignore[operator]
        total = sum(sum(t[p] for p in parts) + t["gap_s"] + t["wait_s"] for t in own)  # type: ignore[misc, operator]
        assert total == pytest.approx(jct, abs=1e-9)


@FEW_EXAMPLES
@given(world=worlds())
def test_without_contention_every_policy_gives_the_same_job_times(world: World) -> None:
    """Prefixes are removed too, since the first of two simultaneous turns would compute them."""
    uncontended = replace(
        world,
        programs=[replace(program, prefix=None) for program in world.programs],
        profile=profile(kv_blocks=100_000),
        limits=Limits(256, 1_000_000),
        offload=None,
    )
    ends = [
        {(t["program_id"], t["turn"]): t["finished_at_s"] for t in run(uncontended, name)[0]}
        for name in VARIANTS
    ]
    assert all(end == ends[0] for end in ends)
