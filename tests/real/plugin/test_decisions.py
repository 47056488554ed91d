"""The same policy decides the same in vLLM's scheduler and in virtual time.

Both replay the same random programs under the same clock. Every admission, preemption and pin, and
every turn's times, agree to the nanosecond, and so does the number of steps. Prompts share no
prefix with other programs here: vLLM keeps a copy of a block for each turn that computed it, the
simulator one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import harness.replay
from servers.policies.base import Costs
from servers.sim import Engine
from servers.variants import VARIANTS
from servers.vllm.versions import UnsupportedVllm
from tests.real.plugin.inside import PluggedEngine, free_blocks
from tests.real.plugin.random_worlds import World, world

EXACT = ["fcfs", "program-fcfs", "static-ttl", "continuum", "continuum-v1", "infercept"]
COSTS = Costs(prefill_s=lambda tokens: tokens / 50, step_tokens=256)
"""Dear enough that contexts are worth holding through most gaps."""
DECISIONS = {"waiting_to_running", "evicted_to_running", "preempted", "pinned", "unpinned"}


def replay(engine: Any, played: World, policy: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    turns: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(harness.replay, "Engine", engine)
    PluggedEngine.programs = {p.id: p for p in played.programs}
    done = harness.replay.replay(
        played.programs,
        played.starts_s,
        None,
        policy=VARIANTS[policy].policy(COSTS),
        bound=False,
        profile=played.profile,
        limits=played.limits,
        offload=None,
        on_turn=turns.append,
        on_event=events.append,
    )
    if engine is PluggedEngine:
        events = PluggedEngine.last.events()
    return done, turns, events


def decisions(events: list[dict[str, Any]]) -> list[str]:
    """In order of time; what happens at the same instant in any order."""
    chosen = [e | {"t": round(e["t"], 9)} for e in events if e["event"] in DECISIONS]
    return sorted(f"{e.pop('t'):015.9f} {sorted(e.items(), key=str)}" for e in chosen)


def measured(turns: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            t["program_id"],
            t["turn"],
            t["first_token_at_s"],
            t["finished_at_s"],
            round(t["queue_s"], 9),
            t["device_hit_tokens"],
            t["preemptions"],
            t["pinned_hit"],
        )
        for t in turns
    )


@pytest.mark.parametrize("policy", EXACT)
def test_decisions_and_times_equal_virtual_time(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        played = world(seed, prefix=False)
        sim, sim_turns, sim_events = replay(Engine, played, policy, monkeypatch)
        real, real_turns, real_events = replay(PluggedEngine, played, policy, monkeypatch)
        assert decisions(real_events) == decisions(sim_events), f"seed {seed}"
        assert measured(real_turns) == measured(sim_turns), f"seed {seed}"
        assert real["steps"] == sim["steps"], f"seed {seed}"
        seen.update(e.get("reason", e["event"]) for e in real_events)
    assert seen["preempted"] > 10
    if policy not in ("fcfs", "program-fcfs"):
        assert seen["pinned"] > 100
        assert seen["reused"] > 100
        assert seen["pressure"] > 10


@pytest.mark.parametrize("policy", [v.name for v in VARIANTS.values() if not v.bound])
def test_every_policy_serves_a_contended_workload_and_leaks_nothing(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(100, 115):
        played = world(seed, prefix=True)
        try:
            done, turns, _ = replay(PluggedEngine, played, policy, monkeypatch)
        except UnsupportedVllm as refused:
            pytest.skip(str(refused))
        assert done["finished_programs"] == len(played.programs)
        assert all(t["error"] is None for t in turns)
        vllm = PluggedEngine.last.vllm
        assert len(vllm.runner.pins) == 0
        assert free_blocks(vllm) == played.profile.kv_blocks
        assert not vllm.turns
        assert not vllm.waiting
        assert not vllm.requests
