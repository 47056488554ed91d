"""A model with sliding-window layers: its blocks, prefix hits and strides.

`tests/real/plugin/differential.py` compares every decision with vLLM's scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.virtual import replay
from servers.policies.base import Costs
from servers.profiles import WindowTimes
from servers.profiles.kv_memory import EVEN, Groups, KvMemory, Lengths, is_chunk
from servers.sim import Engine, Limits, Segment, Sequence, Submission
from servers.sim.copies import Piece
from servers.sim.sequence import Phase
from servers.sim.window_scheduler import WindowScheduler
from servers.sim.windows import WindowKV, WindowOwner
from servers.variants import make_policy, variant
from tests.lines import into
from tests.sim.worlds import BLOCK, World, profile, worlds

WINDOWS = (
    None,
    WindowTimes(40, 91_000, 11_000),
    WindowTimes(128, 91_000, 11_000),
    WindowTimes(40, 91_000, 11_000, chunked=True),
)
"""Times of windows need not be those of the groups."""
GROUPS: tuple[Groups, ...] = (
    (128, None),
    (None, 33),
    (40, 40, 40, None),
    (-48, None),
    (None, -128),
)
COSTS = Costs(prefill_s=lambda tokens: tokens / 50, step_tokens=256)


def turn(kv: WindowKV, path: Any, prompt: int, output: int = 0, chunk: int = 64) -> WindowOwner:
    """Run a turn of `prompt` and `output` tokens and return its owner."""
    owner = kv.owner(path)
    hit = kv.find(owner, (prompt - 1) // BLOCK)
    kv.take_hit(owner, hit.depth)
    computed = hit.depth * BLOCK
    while computed < prompt + output:
        step = min(chunk, prompt - computed) if computed < prompt else 1
        kv.leave_window(owner, computed)
        kv.extend(owner, computed + step)
        computed += step
        kv.hash_full(owner, computed)
        if computed <= prompt:
            kv.hash_windows(owner, computed, prompt)
    return owner


def chain(blocks: int) -> Any:
    return ((Segment(0), blocks),)


def test_a_block_leaves_the_window_when_the_next_token_does_not_attend_to_it() -> None:
    # With a window of 32, a token attends to itself and the 31 before it. Token 46 attends to
    # tokens 15 to 46, so it needs block 0 (tokens 0 to 15), and token 47 does not.
    kv = WindowKV(100, (32, None), BLOCK)
    assert [kv.passed(tokens) for tokens in (0, 46, 47, 62, 63)] == [0, 0, 1, 1, 2]
    assert [kv.next_leave(tokens) for tokens in (0, 47, 48, 63, 64)] == [47, 47, 63, 63, 79]


@pytest.mark.parametrize(("window", "blocks"), [(17, 1), (18, 2), (32, 2), (33, 2), (34, 3)])
def test_the_next_turn_needs_the_blocks_of_all_tokens_before_it_in_its_window(
    window: int, blocks: int
) -> None:
    # The first computed token attends to window - 1 cached tokens, which are in `blocks` blocks of
    # 16. The 12 full blocks of the full-attention group stay too.
    kv = WindowKV(100, (window, None), BLOCK)
    kv.release(turn(kv, chain(20), prompt=160, output=40))
    assert kv.blocks - kv._blank == 12 + blocks


@pytest.mark.parametrize(("kv_blocks", "beside"), [(16, True), (15, False)])
def test_a_turn_is_admitted_if_its_prompt_fits_in_the_blocks_of_all_groups(
    kv_blocks: int, beside: bool
) -> None:
    # Each turn has 20 to 32 tokens, 2 blocks in each of 4 groups.
    ended: list[Sequence] = []
    machine = replace(profile(kv_blocks), kv_groups=(40, 40, 40, None))
    fcfs = make_policy(variant("fcfs"), COSTS)
    engine = Engine(fcfs, machine, Limits(4, 64), on_end=ended.append)
    for program, at_ps in (("a", 0), ("b", 10_000_000_000)):
        engine.submit(Submission(program, chain(2), 20, 12, is_last=True), at_ps)
    engine.run()
    first, second = ended
    starts_ps = 10_000_000_000 + second.spent_ps[Phase.QUEUE]
    assert (starts_ps < (first.finished_ps or 0)) == beside


def test_a_window_group_keeps_the_blocks_of_the_last_window_only() -> None:
    kv = WindowKV(100, (32, None), BLOCK)
    owner = turn(kv, chain(20), prompt=160, output=40)
    # 200 tokens are 13 blocks of full attention. At the last step, 199 tokens were computed, and
    # the next one attends to tokens 168 to 199, which are in blocks 10 to 12.
    assert owner.blocks == 13 + 3
    assert kv.used == 16


def test_a_hit_ends_where_the_prompt_ended_since_the_answers_windows_are_not_hashed() -> None:
    kv = WindowKV(100, (32, 32, None), BLOCK)
    path = chain(20)
    kv.release(turn(kv, path, prompt=160, output=40))
    # All 12 full blocks of the full-attention group are cached. The last prompt token is computed
    # again, so the windows end after block 8.
    assert kv.find(kv.owner(path), 19).depth == 9


@pytest.mark.parametrize(("lengths", "depth"), [((1, 1), 9), ((2, 1), 8), ((1, 3), 9), ((1, 2), 8)])
def test_a_hit_ends_at_a_multiple_of_the_longer_blocks(
    lengths: tuple[int, int], depth: int
) -> None:
    kv = WindowKV(100, (32, None), BLOCK, lengths)
    path = chain(20)
    kv.release(turn(kv, path, prompt=160))
    assert kv.free == 100
    # The last prompt token is computed again, so the hit has at most 9 blocks of 16 tokens.
    assert kv.find(kv.owner(path), 9).depth == depth


def test_groups_with_longer_blocks_need_fewer_of_them() -> None:
    # 100 tokens are 7 blocks of 16 and 4 blocks of 32. A window of 33 in steps of 16 needs at most
    # 4 blocks of 16 and 3 of 32.
    even = KvMemory(8, BLOCK, kv_groups=(33, None))
    assert even.turn_blocks(100, step_tokens=16) == 4 + 7
    assert replace(even, block_lengths=(2, 1)).turn_blocks(100, step_tokens=16) == 4 + 4
    assert replace(even, block_lengths=(1, 2)).turn_blocks(100, step_tokens=16) == 3 + 7
    assert replace(even, block_lengths=(2, 1)).longest_turn(step_tokens=16) == 4 * 32


@pytest.mark.parametrize(("prompt", "hashed"), [(15, False), (16, True), (31, True)])
def test_a_decode_hashes_what_turns_share_of_its_prompt_when_it_fills_the_longer_block(
    prompt: int, hashed: bool
) -> None:
    # Blocks are hashed at multiples of 32 tokens. The prompt has one full block of 16, if any.
    kv, shared = WindowKV(100, (None, 33), BLOCK, (1, 2)), Segment(0)
    owner = kv.owner(((shared, 1), (Segment(1), 5)))
    kv.extend(owner, 33)
    kv.hash_full(owner, prompt)
    kv.hash_later(owner, prompt)
    kv.hash_decode(owner, 31)
    assert not shared.copies
    kv.hash_decode(owner, 32)
    kv.hash_decode(owner, 33)
    assert bool(shared.copies) == hashed
    assert owner.depth == (2 if hashed else 0)


def test_a_longer_hit_of_full_attention_makes_its_end_a_place_to_resume() -> None:
    kv = WindowKV(100, (32, None), BLOCK)
    root = Segment(0)
    kv.release(turn(kv, ((root, 20),), prompt=160, output=40))
    kv.release(turn(kv, ((root, 12), (Segment(12), 20)), prompt=300))
    assert kv.find(kv.owner(((root, 12), (Segment(12), 20))), 19).depth == 12


def test_evicted_windows_shorten_a_hit_of_full_attention() -> None:
    kv = WindowKV(16, (32, None), BLOCK)
    path = chain(12)
    kv.release(turn(kv, path, prompt=160))
    # Idle blocks in order of eviction: blocks 8 and 7 of the window group, then 9 to 0 of the other
    # one. Four blocks are blank.
    taken = kv.owner(chain(12))
    kv.allocate(taken, kv._blank)
    assert kv.find(kv.owner(path), 9).depth == 9
    kv.allocate(taken, 1)
    assert kv.find(kv.owner(path), 9).depth == 0


def test_a_pin_takes_the_windows_that_its_turn_has_left() -> None:
    kv = WindowKV(100, (32, None), BLOCK)
    path = chain(40)
    owner = turn(kv, path, prompt=160, output=200)
    assert not owner.held[0]
    kv.take_left(owner, prompt_tokens=160)
    kv.release_blank(owner)
    assert owner.blocks == 22 + 2
    kv.allocate(kv.owner(chain(1)), kv.free)
    assert kv.find(kv.owner(path), 39).depth == 9


def test_vllm_keeps_a_copy_of_blocks_that_are_computed_again() -> None:
    kv = WindowKV(100, (32, None), BLOCK)
    path = chain(20)
    kv.release(turn(kv, path, prompt=160, output=40))
    cached = kv.blocks - kv._blank
    # Blocks 9 to 11 of the full-attention group are computed again, block 12 for the first time,
    # and so are the two windows before the ends of the longest hit and of the prompt.
    kv.release(turn(kv, path, prompt=209))
    assert kv.blocks - kv._blank == cached + 4 + 3


def test_a_hit_takes_the_oldest_copy_of_each_block() -> None:
    kv = WindowKV(100, (32, None), BLOCK)
    path = chain(20)
    first = turn(kv, path, prompt=160, output=40)
    second = turn(kv, path, prompt=209)
    kv.release(second)
    # Blocks 9 to 11 of the full-attention group have two copies, and the first turn holds the older
    # ones. So of a hit of 12 blocks, only two of the window group are free.
    assert kv.find(kv.owner(path), 12) == (12, 2)
    kv.release(first)
    # Once that turn has ended, they are free too.
    assert kv.find(kv.owner(path), 12) == (12, 12 + 2)


@given(st.sampled_from(GROUPS), st.integers(1, 2000), st.integers(1, 300))
def test_the_longest_turn_fits_and_one_more_block_does_not(
    groups: Groups, blocks: int, step_tokens: int
) -> None:
    memory = KvMemory(blocks, BLOCK, kv_groups=groups)
    longest = memory.longest_turn(step_tokens)
    assert memory.turn_blocks(longest, step_tokens) <= blocks
    assert memory.turn_blocks(longest + 1, step_tokens) > blocks


@given(
    worlds(offload=False),
    st.sampled_from(GROUPS),
    st.sampled_from(WINDOWS),
    st.sampled_from(["fcfs", "continuum", "infercept"]),
    st.sampled_from([EVEN, EVEN, (2, 1), (1, 3)]),
)
def test_strides_equal_single_steps_and_leave_no_blocks(
    world: World, groups: Groups, window: WindowTimes | None, policy: str, lengths: Lengths
) -> None:
    if any(map(is_chunk, groups)):
        lengths = EVEN
    largest = max(p.peak_context_tokens for p in world.programs)
    profile = replace(world.profile, window=window, kv_groups=groups, block_lengths=lengths)
    blocks = profile.turn_blocks(largest, world.limits.step_tokens)
    profile = replace(profile, kv_blocks=blocks + world.profile.kv_blocks % 41)
    single, strided = (play(world, profile, policy, strides) for strides in (False, True))
    assert strided == single


def play(world: World, profile: Any, policy: str, strides: bool) -> Any:
    turns: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    engines: list[Engine] = []

    def make(**options: Any) -> Engine:
        engines.append(
            Engine(
                make_policy(variant(policy), COSTS),
                profile,
                world.limits,
                on_event=into(events),
                strides=strides,
                **options,
            )
        )
        return engines[0]

    done = replay(world.programs, world.starts_s, None, make, into(turns))
    scheduler = engines[0].scheduler
    assert isinstance(scheduler, WindowScheduler)
    kv = scheduler.kv
    idle = list(kv._queue)
    assert kv.free == kv._blank + sum(run.high - run.low for run in idle) == kv.blocks
    assert not any(run.references for run in idle if isinstance(run, Piece))
    return turns, sorted(map(repr, events)), done.steps, done.virtual_s
