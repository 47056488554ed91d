"""The same policy decides the same in vLLM's scheduler and in virtual time.

A fixed set of the random workloads of `differential`; `make differential` plays 10,000. What vLLM
does by accident and virtual time does not copy has a test of its own at the end.
"""

from __future__ import annotations

from collections import Counter

import pytest

from servers.errors import UnsupportedVllm
from servers.sim import Limits
from servers.variants import variant
from servers.vllm.virtual_time.engine import VirtualVllm
from servers.vllm.virtual_time.stepping import free_blocks
from tests.real.plugin.differential import POLICIES, StepwiseVllm, compare, play
from tests.real.plugin.random_worlds import World, world
from tests.sim.worlds import profile
from traces import Program, SharedPrefix, Turn


@pytest.mark.parametrize("policy", POLICIES)
def test_every_decision_and_time_equals_virtual_time(policy: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        try:
            verdict = compare(seed, policy)
        except UnsupportedVllm as refused:
            pytest.skip(str(refused))
        assert not verdict.difference or verdict.copies, f"seed {seed}: {verdict.difference}"
        seen += verdict.counts
    assert seen["preempted"] > 10
    assert seen["aborted"] > 5
    if variant(policy).policy.reclaim_when == "stuck" and seen["pinned"]:
        assert seen["pinned"] > 50


@pytest.mark.parametrize("policy", POLICIES)
def test_strides_change_nothing_and_nothing_leaks(policy: str) -> None:
    for seed in range(100, 115):
        played = world(seed, unruly=False)  # so that every program says which turn is its last
        try:
            single = play(played, seed, policy, StepwiseVllm)
        except UnsupportedVllm as refused:
            pytest.skip(str(refused))
        strided = play(played, seed, policy, VirtualVllm)
        assert strided[1:4] == single[1:4], f"seed {seed}"
        assert strided.engine.strides < single.engine.strides
        vllm = strided.engine.vllm
        assert len(vllm.runner.pins) == 0
        assert free_blocks(vllm) == played.profile.kv_blocks
        assert not vllm.turns
        assert not vllm.waiting
        assert not vllm.requests


def test_accident_vllm_keeps_a_copy_of_a_block_for_each_turn_that_computed_it() -> None:
    """Both prompts are one block that vLLM computes again, since a prompt's last token always is:
    the block that it opens for that has the same hash. Virtual time keeps one."""
    shared = SharedPrefix("system", 16)
    programs = [Program(f"p{i}", (Turn(16, 4),), shared) for i in range(2)]
    played = World(programs, [0.0, 0.005], profile(8), Limits(4, 64), unruly=False)
    verdict = compare(0, "fcfs", played)
    assert verdict.copies == 1
