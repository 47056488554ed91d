"""A policy makes the same decisions in vLLM's scheduler and in virtual time.

These tests run a few random workloads of `differential`; `make differential` runs 10,000, every
night also with several KV groups, with drafts and with stages.
A side effect of vLLM that virtual time does not reproduce has a separate test at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from vllm.config import CacheConfig

from servers.admission import Admission
from servers.basics.errors import UnsupportedVllm
from servers.policies.base import Policy
from servers.sim import Limits
from servers.variants import variant
from servers.vllm.virtual_time.engine import VirtualVllm
from servers.vllm.virtual_time.stepping import free_blocks
from tests.real.plugin.differential import HOLDING, POLICIES, StepwiseVllm, compare, play
from tests.real.plugin.random_worlds import (
    World,
    chunked,
    pipelined,
    speculating,
    stateful,
    uneven,
    windowed,
    world,
)
from tests.sim.worlds import profile
from traces import Program, SharedPrefix, Turn

CONTENDED = {Admission.WHOLE_PROMPT: (15, 19, 28, 29, 30), Admission.FIRST_CHUNK: (10, 13)}
"""Seeds of workloads that abort or preempt turns under nearly every policy."""
CHANGES: tuple[Callable[[World, int], World], ...] = (
    windowed,
    uneven,
    chunked,
    stateful,
    speculating,
    pipelined,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_decision_and_time_equals_virtual_time(policy: str) -> None:
    admission = Admission.WHOLE_PROMPT
    seen = _compare_all(policy, CONTENDED[admission], admission)
    assert seen["preempted"] > 5 or _holds_back(policy)
    assert seen["aborted"] > 5
    if variant(policy).policy.reclaim_when == "stuck" and seen["pinned"]:
        assert seen["pinned"] > 20


@pytest.mark.parametrize("policy", POLICIES)
def test_every_decision_and_time_equals_virtual_time_under_first_chunk(policy: str) -> None:
    admission = Admission.FIRST_CHUNK
    seen = _compare_all(policy, CONTENDED[admission], admission)
    assert seen["preempted"] > 5 or _holds_back(policy)


def _holds_back(policy: str) -> bool:
    """Return whether the policy may hold turns back, so that it rarely has to preempt any."""
    return variant(policy).policy.admit is not Policy.admit


@pytest.mark.parametrize("policy", HOLDING)
@pytest.mark.parametrize("admission", Admission)
def test_every_decision_and_time_equals_virtual_time_if_the_policy_holds_turns_back(
    policy: str, admission: Admission
) -> None:
    _compare_all(policy, range(2), admission)


@pytest.mark.parametrize("number", range(len(POLICIES)), ids=POLICIES)
def test_every_decision_and_time_equals_virtual_time_with_kv_groups_drafts_or_stages(
    number: int,
) -> None:
    """Each policy with one of the changes, and each change with both rules of admission."""
    if not hasattr(CacheConfig, "prefix_cache_retention_interval"):
        pytest.skip("virtual time follows the prefix hits of vLLM 0.32")
    policy, seed = POLICIES[number], number // len(CHANGES) % len(Admission)
    admission, changed = list(Admission)[seed], CHANGES[number % len(CHANGES)]
    try:
        verdict = compare(seed, policy, changed(world(seed, admission=admission), seed))
    except UnsupportedVllm as refused:
        pytest.skip(str(refused))
    if changed is not pipelined:
        verdict = verdict._replace(copies=0)
    assert not verdict.is_unexplained, verdict.difference


def _compare_all(policy: str, seeds: Iterable[int], admission: Admission) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            verdict = compare(seed, policy, world(seed, admission=admission))
        except UnsupportedVllm as refused:
            pytest.skip(str(refused))
        assert not verdict.is_unexplained, f"seed {seed}: {verdict.difference}"
        seen += verdict.counts
    return seen


@pytest.mark.parametrize(
    ("seed", "admission"), [(101, Admission.WHOLE_PROMPT), (103, Admission.FIRST_CHUNK)]
)
@pytest.mark.parametrize("policy", [*POLICIES, *HOLDING])
def test_strides_change_no_result_and_leave_no_blocks_or_turns(
    policy: str, seed: int, admission: Admission
) -> None:
    # Not unruly, so that every program marks its last turn.
    played = world(seed, unruly=False, admission=admission)
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


def test_vllm_stores_a_copy_of_a_block_for_each_turn_that_computed_it() -> None:
    """Both prompts are one block, which vLLM computes twice, since it always computes the last
    prompt token. The second block has the same hash. Virtual time stores one."""
    shared = SharedPrefix("system", 16)
    programs = [Program(f"p{i}", (Turn(16, 4),), shared) for i in range(2)]
    played = World(programs, [0.0, 0.005], profile(8), Limits(4, 64), unruly=False)
    verdict = compare(0, "fcfs", played)
    assert verdict.copies == 1
