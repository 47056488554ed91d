"""Invariants for every workload, machine and policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from msgspec import structs

from harness.replay.virtual import replay
from servers.policies.base import Policy
from servers.profiles import Profile, costs
from servers.records.done import DoneRecord
from servers.sim import Engine, Limits, Sequence
from servers.sim.scheduler import Scheduler
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


def policy_for(name: str, profile: Profile, step_tokens: int, offload: bool) -> Policy:
    variant = variants(name)[0]
    return make_policy(variant, costs(profile, step_tokens=step_tokens, offload=offload))


def run(
    world: World,
    name: str,
    *,
    strides: bool = True,
    check: Callable[[Scheduler], None] = lambda _: None,
) -> tuple[list[dict[str, object]], list[dict[str, object]], DoneRecord]:
    """Replay a world under a policy, with a check of the engine's blocks when a turn ends."""
    turns: list[dict[str, object]] = []
    events: list[dict[str, object]] = []
    oracle = bool(variants(name)[0].reference)

    def build(*, on_end: Callable[[Sequence], None]) -> Engine:
        def ended(sequence: Sequence) -> None:
            check(engine.scheduler)
            on_end(sequence)

        engine = Engine(
            policy_for(name, world.profile, world.limits.step_tokens, bool(world.offload)),
            world.profile,
            world.limits,
            world.offload,
            on_end=ended,
            on_event=into(events),
            strides=strides,
        )
        return engine

    done = replay(world.programs, world.starts_s, None, build, into(turns), oracle=oracle)
    return turns, events, done


@pytest.mark.parametrize("name", [*VARIANTS, *EAGER, HOLDS_BACK])
@settings(max_examples=settings().max_examples // 3)
@given(world=worlds())
def test_programs_finish_blocks_add_up_and_strides_change_nothing(name: str, world: World) -> None:
    turns, events, done = run(world, name)
    assert done.finished_programs == len(world.programs)
    assert done.failed_turns == 0
    check_parts(turns)
    schedulers: list[Scheduler] = []

    def check(scheduler: Scheduler) -> None:
        check_blocks(scheduler)
        schedulers.append(scheduler)

    single_turns, single_events, single_done = run(world, name, strides=False, check=check)
    assert turns == single_turns
    assert events == single_events
    assert structs.replace(done, strides=single_done.strides) == single_done
    check_blocks(schedulers[-1])
    assert len(schedulers[-1].runner.pins) == 0
    assert schedulers[-1].kv.used == 0


def check_parts(turns: list[dict[str, object]]) -> None:
    """Check that the parts of a turn's time add up to it, and those of a job's turns to its JCT."""
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
