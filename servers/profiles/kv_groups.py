"""Counts KV blocks of models with several kinds of layers like vLLM's hybrid KV cache manager.

vLLM (0.32, `vllm/v1/core/kv_cache_utils.py`) splits the layers of each kind into groups of equal
numbers of layers, so that a block has the same size in every group, and all groups take blocks from
one pool. A group is written as its window in tokens, None for full attention, `STATE` or
`STATE_INSIDE` for layers that keep a state of constant size, or -n for layers that attend within
chunks of n tokens, n > 1. Counts are in blocks of the pool.

If a token has fewer or more bytes in the layers with a window than in those without, the blocks of
one kind hold more tokens (`unify_kv_cache_spec_page_size`). `Lengths` are those of a block with
full attention and of each other block, in multiples of the profile's `block_tokens`; one is 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple

from servers.basics.errors import InvalidInput
from servers.profiles.models.shape import Model
from servers.profiles.profile import Profile

Groups = tuple[int | None, ...]
Lengths = tuple[int, int]

EVEN: Final[Lengths] = (1, 1)
FULL_ATTENTION: Groups = (None,)
STATE: Final = 0
STATE_INSIDE: Final = -1
"""Layers whose kernels save the state at a block boundary inside a chunk, as Mamba 2's do."""
CONCURRENT_STEPS = 2
"""Number of steps that vLLM schedules before the first of them ends. It reserves window blocks for
them when it reports the KV memory in tokens."""


def most_window_blocks(window: int, step_tokens: int, block_tokens: int) -> int:
    """Return the maximum number of blocks that one turn needs in a window group: the blocks of a
    window and of the tokens in flight, and one because the window may begin inside a block, as a
    chunk does not. In a state group: those with the states before, after and perhaps inside a
    step."""
    if is_state(window):
        return 2 - window
    if is_chunk(window):
        return -(-(step_tokens - window) // block_tokens)
    return -(-(window - 1 + step_tokens) // block_tokens) + 1


def turn_blocks(
    groups: Groups, tokens: int, step_tokens: int, block_tokens: int, lengths: Lengths = EVEN
) -> int:
    """Return the number of blocks that must be free for a turn of `tokens` tokens that runs alone,
    in steps of at most `step_tokens` tokens."""
    full, local = (block_tokens * length for length in lengths)
    return sum(
        -(-tokens // full)
        if window is None
        else min(-(-tokens // local), most_window_blocks(window, step_tokens, local))
        for window in groups
    )


def longest_turn(
    groups: Groups, kv_blocks: int, step_tokens: int, block_tokens: int, lengths: Lengths = EVEN
) -> int:
    """Return the number of tokens of the longest turn that the pool can hold."""
    if len(groups) == 1:
        return kv_blocks * block_tokens
    fits, too_long = 0, kv_blocks * max(lengths) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        tokens = middle * block_tokens
        if turn_blocks(groups, tokens, step_tokens, block_tokens, lengths) <= kv_blocks:
            fits = middle
        else:
            too_long = middle
    return fits * block_tokens


def kv_tokens_of(profile: Profile, step_tokens: int) -> int:
    """Return the KV memory of a profile in tokens, as vLLM prints it."""
    return kv_tokens(
        profile.kv_groups,
        profile.kv_blocks,
        step_tokens,
        profile.block_tokens,
        profile.max_model_len,
        profile.block_lengths,
    )


def kv_tokens(
    groups: Groups,
    kv_blocks: int,
    step_tokens: int,
    block_tokens: int,
    max_model_len: int,
    lengths: Lengths = EVEN,
) -> int:
    """Return the number of turns of `max_model_len` tokens that the pool can hold, times that
    length."""
    if len(groups) == 1:
        return kv_blocks * block_tokens
    full, local = (block_tokens * length for length in lengths)
    per_turn = 0
    for window in groups:
        if window is None:
            per_turn += -(-max_model_len // full)
        elif is_state(window):
            per_turn += most_window_blocks(window, step_tokens, local)
        elif is_chunk(window):
            kept = min(CONCURRENT_STEPS * step_tokens - window, max_model_len)
            per_turn += -(-kept // local)
        else:
            kept = min(window - 1 + CONCURRENT_STEPS * step_tokens, max_model_len)
            per_turn += -(-kept // local) + 1
    return int(kv_blocks / per_turn * max_model_len)


def is_state(group: int | None) -> bool:
    return group in (STATE, STATE_INSIDE)


def is_chunk(group: int | None) -> bool:
    return group is not None and group < STATE_INSIDE


def keeps_states(groups: Groups) -> bool:
    return any(map(is_state, groups))


def without_windows(profile: Profile) -> Profile:
    """Return the profile of an engine in which every layer keeps all tokens in the same memory. No
    engine keeps all states, so that a profile with states is unchanged."""
    if keeps_states(profile.kv_groups):
        return profile
    groups = len(profile.kv_groups)
    return replace(profile, kv_groups=FULL_ATTENTION, kv_blocks=profile.kv_blocks // groups)


def groups_of(llm: Model) -> tuple[Groups, int]:
    """Return the groups of the model's layers, and the number of layers in each.

    A group has as many layers as the rarer of the two kinds, or as the other kind if it has less
    than 1.5 times as many; the last group of a kind may be padded. Models whose layers all have a
    window, and models with windows and several groups of full attention, are counted as if all
    layers kept all tokens. Raises InvalidInput for states beside several such groups."""
    full = [kind for kind in llm.kinds if kind.window is None]
    local = [kind for kind in llm.kinds if kind.window is not None]
    if llm.states is not None:
        layers = _group_layers(full[0].layers, llm.states.layers)
        if full[0].layers > layers:
            raise InvalidInput(
                f"{llm.name}: has {full[0].layers} layers with attention and only "
                f"{llm.states.layers} with a state, which vLLM would keep in several groups of "
                "attention; no such group is supported beside states"
            )
        state = STATE_INSIDE if llm.states.inside else STATE
        states: Groups = -(-llm.states.layers // layers) * (state,)
        return ((*states, None) if llm.states.first else (None, *states)), layers
    if len(full) == len(local) == 1:
        layers = _group_layers(full[0].layers, local[0].layers)
        if full[0].layers <= layers:
            found = (-(-kind.layers // layers) * (kind.kv_group,) for kind in llm.kinds)
            return tuple(window for group in found for window in group), layers
    return FULL_ATTENTION, llm.layers


def _group_layers(full: int, others: int) -> int:
    fewest, most = sorted((full, others))
    return most if most < 1.5 * fewest else fewest


def block_tokens_of(llm: Model, gpus: int, block_tokens: int) -> int:
    """Return the tokens of a block: `block_tokens`, or enough for the page of an attention layer to
    hold a state (vLLM 0.32, `vllm/platforms/interface.py`, `_align_hybrid_block_size`). Kernels of
    sparse attention prescribe a multiple."""
    if llm.indexer is not None:
        return llm.indexer.block_tokens * -(-block_tokens // llm.indexer.block_tokens)
    if llm.states is None:
        return block_tokens
    block_tokens = math.lcm(block_tokens, llm.states.block_tokens)
    page = block_tokens * llm.kinds[0].bytes_of_layer(gpus)
    return block_tokens * -(-llm.states.bytes_on(gpus) // page)


class Pool(NamedTuple):
    groups: Groups
    block_bytes: int
    """On all GPUs."""
    lengths: Lengths = EVEN


def pool(llm: Model, gpus: int, block_tokens: int, *, windows: bool = True) -> Pool:
    """Return the KV groups and blocks of a model. `windows`: whether vLLM frees the blocks before a
    window, which it does not do with a KV connector such as LMCache's."""
    groups, layers = groups_of(llm)
    if llm.states is not None:
        return Pool(groups, llm.kinds[0].bytes_of_layer(gpus) * layers * block_tokens)
    if len(groups) == 1 or not windows:
        return Pool(FULL_ATTENTION, llm.kv_bytes_per_token_on(gpus) * block_tokens)
    for group in groups:
        if is_chunk(group) and group is not None and -group % block_tokens:
            raise InvalidInput(
                f"{llm.name}: its attention_chunk_size of {-group} tokens is no multiple of the "
                f"{block_tokens} tokens of a block; such chunks are not modelled"
            )
    sizes = {kind.window is None: kind.bytes_of_layer(gpus) for kind in llm.kinds}
    largest = max(sizes.values())
    full, local = (
        1 if largest % sizes[is_full] else largest // sizes[is_full] for is_full in (True, False)
    )
    return Pool(groups, largest * layers * block_tokens, (full, local))
