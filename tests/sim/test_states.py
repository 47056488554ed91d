"""A model whose layers keep states: its blocks, prefix hits, chunks and strides.

`tests/real/plugin/differential.py` compares every decision with vLLM's scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import InvalidInput
from servers.profiles.kv_memory import STATE, STATE_INSIDE, Groups, KvMemory
from servers.sim import Engine, Limits, Offload, Segment, Submission
from servers.sim.states import StateKV, StateOwner
from servers.variants import make_policy, variant
from tests.sim.test_windows import COSTS, chain, play
from tests.sim.worlds import BLOCK, World, profile, worlds

GROUPS: tuple[Groups, ...] = ((STATE, None), (None, STATE, STATE), (STATE_INSIDE,) * 3 + (None,))


def turn(kv: StateKV, path: Any, prompt: int, output: int = 0) -> StateOwner:
    """Run a turn whose chunks end at the last boundary in the prompt, and return its owner."""
    owner = kv.owner(path)
    computed = kv.find(owner, (prompt - 1) // BLOCK).depth * BLOCK
    kv.take_hit(owner, computed // BLOCK)
    ends = [(prompt - 1) // BLOCK * BLOCK, *range(prompt, prompt + output + 1)]
    for end in [end for end in ends if end > computed]:
        kv.leave_window(owner, computed)
        kv.extend(owner, end)
        computed = end
        kv.hash_full(owner, computed)
        if computed <= prompt:
            kv.hash_windows(owner, computed, prompt)
    return owner


def chunks(
    prompts: list[tuple[Any, int]], groups: Groups, limits: Limits, **sizes: Any
) -> list[list[tuple[str | None, int]]]:
    """Return the prompt chunks of each step of turns that arrive at once, by program."""
    steps: list[list[tuple[str | None, int]]] = []

    class Watched(Engine):
        def _plan(self, batch: Any) -> None:
            steps.append([(s.submission.program_id, n) for s, n in batch.chunks])
            super()._plan(batch)

    machine = replace(profile(200, **sizes), kv_groups=groups)
    fcfs = make_policy(variant("fcfs"), COSTS)
    engine = Watched(fcfs, machine, limits, on_end=lambda _: None, strides=False)
    for number, (path, prompt) in enumerate(prompts):
        engine.submit(Submission(f"p{number}", path, prompt, 1, is_last=True), 0)
    engine.run()
    return steps


def test_a_turn_has_one_state_in_each_group_and_another_one_while_a_step_computes_it() -> None:
    kv = StateKV(100, (STATE, STATE, None), BLOCK)
    owner = kv.owner(chain(20))
    kv.extend(owner, 80)
    assert owner.blocks == 5 + 2
    kv.leave_window(owner, 80)
    kv.extend(owner, 96)
    assert owner.blocks == 6 + 2 * 2
    kv.leave_window(owner, 96)
    kv.extend(owner, 97)
    # The next slot is in a new block, and the state of the step before is the last one of 96.
    assert owner.blocks == 7 + 2 * 2
    kv.leave_window(owner, 97)
    assert owner.blocks == 7 + 2


def test_a_hit_ends_at_the_last_boundary_in_the_prompt_that_computed_it() -> None:
    kv = StateKV(100, (STATE, None), BLOCK)
    path = chain(20)
    kv.release(turn(kv, path, prompt=150, output=40))
    # 144 of 150 tokens are whole blocks. The full-attention group also has those of the answer.
    assert kv.find(kv.owner(path), 19).depth == 9
    # Of a prompt of whole blocks, the last token is computed again.
    other = chain(20)
    kv.release(turn(kv, other, prompt=160))
    assert kv.find(kv.owner(other), 19).depth == 9


def test_an_evicted_state_ends_the_hit_although_the_blocks_of_attention_are_cached() -> None:
    kv = StateKV(12, (STATE, None), BLOCK)
    path = chain(20)
    kv.release(turn(kv, path, prompt=150))
    taken = kv.owner(chain(1))
    kv.allocate(taken, kv._blank)
    assert kv.find(kv.owner(path), 19).depth == 9
    kv.allocate(taken, 1)  # the state was freed first
    assert kv.find(kv.owner(path), 19).depth == 0


def test_a_pin_takes_the_state_that_its_turn_has_freed() -> None:
    kv = StateKV(100, (STATE, STATE, None), BLOCK)
    path = chain(40)
    owner = turn(kv, path, prompt=150, output=100)
    kv.take_left(owner, prompt_tokens=150)
    kv.release_blank(owner)
    assert owner.blocks == 15 + 2
    kv.allocate(kv.owner(chain(1)), kv.free)
    assert kv.find(kv.owner(path), 39).depth == 9


@pytest.mark.parametrize(("kept", "hit"), [(True, 9), (False, 0)])
def test_a_state_that_a_turn_keeps_survives_turns_that_take_all_memory(
    kept: bool, hit: int
) -> None:
    kv = StateKV(100, (STATE, STATE, None), BLOCK)
    path = chain(40)
    owner = turn(kv, path, prompt=150)
    if kept:
        kv.keep(owner, prompt_tokens=150)
    for tokens in range(150, 250):
        kv.leave_window(owner, tokens)
        kv.extend(owner, tokens + 1)
    # 16 blocks of attention and the next state of each group, beside the kept ones.
    assert 100 - kv.free == 16 + 2 + 2 * kept
    others = kv.owner(chain(1))
    kv.allocate(others, kv.free)
    kv.take_left(owner, prompt_tokens=150)
    kv.release(others)
    assert kv.find(kv.owner(path), 39).depth == hit
    kv.release(owner)
    assert kv.free == 100


def test_chunks_end_where_a_state_is_cached() -> None:
    # A step computes 64 tokens. 150 tokens have their last boundary at 144.
    limits = Limits(4, 64)
    assert chunks([(chain(10), 150)], (STATE, None), limits)[:4] == [
        [("p0", 64)], [("p0", 64)], [("p0", 16)], [("p0", 6)],
    ]  # fmt: skip
    # Kernels that save it inside a chunk need no chunk that ends there.
    assert chunks([(chain(10), 150)], (STATE_INSIDE, None), limits)[:3] == [
        [("p0", 64)], [("p0", 64)], [("p0", 22)],
    ]  # fmt: skip


def test_a_chunk_that_would_end_inside_a_block_waits_for_a_larger_budget() -> None:
    # The first turn leaves 10 of 26 tokens, less than a block.
    steps = chunks([(chain(1), 16), (chain(4), 60)], (STATE, None), Limits(4, 26))
    assert steps[:3] == [[("p0", 16)], [("p1", 16)], [("p1", 16)]]


def test_blocks_longer_than_a_step_are_computed_in_several_chunks() -> None:
    # 100 tokens have their last boundary at 64; a step computes 24 of each.
    steps = chunks([(chain(2), 100)], (STATE, None), Limits(4, 24), block_tokens=64)
    assert [n for step in steps for _, n in step] == [24, 24, 16, 24, 12]


def test_a_state_is_hit_once_no_step_computes_it_or_begins_at_it() -> None:
    root = Segment(0)
    a, b = ((root, 2), (Segment(2), 4)), ((root, 2), (Segment(2), 4))
    steps = chunks([(a, 40), (b, 60)], (STATE, None), Limits(4, 64))
    # The first turn computes the state after 32 tokens, which the second turn's hit needs. vLLM
    # registers it again in the first turn's next step.
    assert steps[:3] == [[("p0", 32)], [("p0", 8)], [("p1", 16)]]


def test_an_offload_tier_is_refused_since_it_stores_no_states() -> None:
    machine = replace(profile(100), kv_groups=(STATE, None))
    with pytest.raises(InvalidInput, match="states have KV groups"):
        Engine(
            make_policy(variant("fcfs"), COSTS),
            machine,
            Limits(4, 64),
            Offload(1.0),
            on_end=lambda _: None,
        )


def test_kv_tokens_count_two_states_of_a_turn_and_one_more_if_kernels_save_them_inside() -> None:
    # A turn of 1,600 tokens has 100 blocks of attention, and 2 or 3 in each of two other groups.
    for blocks, state in ((1040, STATE), (1060, STATE_INSIDE)):
        memory = KvMemory(blocks, BLOCK, kv_groups=(state, state, None))
        assert memory.kv_tokens(256, 1600) == 16_000


@given(
    worlds(offload=False),
    st.sampled_from(GROUPS),
    st.sampled_from([BLOCK, 48]),
    st.sampled_from(["fcfs", "continuum", "infercept"]),
)
def test_strides_equal_single_steps_and_leave_no_blocks(
    world: World, groups: Groups, block: int, policy: str
) -> None:
    largest = max(p.peak_context_tokens for p in world.programs)
    machine = replace(world.profile, kv_groups=groups, block_tokens=block)
    blocks = machine.turn_blocks(largest, world.limits.step_tokens)
    machine = replace(machine, kv_blocks=blocks + world.profile.kv_blocks % 41)
    single, strided = (play(world, machine, policy, strides) for strides in (False, True))
    assert strided == single
