"""KV blocks of models with sliding-window layers, as counted by vLLM's hybrid KV cache manager.

vLLM (0.32, `vllm/v1/core/kv_cache_utils.py`) splits the layers of each kind into groups of equal
numbers of layers, so that a block has the same size in every group, and all groups take blocks from
one pool. A group is written as its window in tokens, or None for full attention. Counts are in
blocks of the pool.
"""

from __future__ import annotations

Groups = tuple[int | None, ...]

FULL_ATTENTION: Groups = (None,)


def most_window_blocks(window: int, step_tokens: int, block_tokens: int) -> int:
    """Return how many blocks one turn needs at most in a window group: those of a window and of the
    tokens in flight, and one because the window may begin inside a block."""
    return -(-(window - 1 + step_tokens) // block_tokens) + 1


def turn_blocks(groups: Groups, tokens: int, step_tokens: int, block_tokens: int) -> int:
    """Return the number of blocks that must be free for a turn of `tokens` tokens that runs alone,
    in steps of at most `step_tokens` tokens."""
    blocks = -(-tokens // block_tokens)
    return sum(
        blocks
        if window is None
        else min(blocks, most_window_blocks(window, step_tokens, block_tokens))
        for window in groups
    )


def longest_turn(groups: Groups, kv_blocks: int, step_tokens: int, block_tokens: int) -> int:
    """Return the number of tokens of the longest turn that the pool can hold."""
    if len(groups) == 1:
        return kv_blocks * block_tokens
    fits, too_long = 0, kv_blocks + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if turn_blocks(groups, middle * block_tokens, step_tokens, block_tokens) <= kv_blocks:
            fits = middle
        else:
            too_long = middle
    return fits * block_tokens
