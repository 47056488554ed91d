"""Computes the KV groups and the block size of a model, as vLLM (0.32) plans them."""

from __future__ import annotations

import math
from typing import NamedTuple

from servers.basics.errors import InvalidInput
from servers.profiles.kv_memory import (
    EVEN,
    FULL_ATTENTION,
    STATE,
    STATE_INSIDE,
    Groups,
    Lengths,
    is_chunk,
)
from servers.profiles.models.shape import Model


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


class KvPool(NamedTuple):
    groups: Groups
    block_bytes: int
    """On all GPUs."""
    lengths: Lengths = EVEN


def pool(llm: Model, gpus: int, block_tokens: int, *, windows: bool = True) -> KvPool:
    """Return the KV groups and blocks of a model. `windows`: whether vLLM frees the blocks before a
    window, which it does not do with a KV connector such as LMCache's."""
    groups, layers = groups_of(llm)
    if llm.states is not None:
        return KvPool(groups, llm.kinds[0].bytes_of_layer(gpus) * layers * block_tokens)
    if len(groups) == 1 or not windows:
        return KvPool(FULL_ATTENTION, llm.kv_bytes_per_token_on(gpus) * block_tokens)
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
    return KvPool(groups, largest * layers * block_tokens, (full, local))
