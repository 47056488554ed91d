"""The KV memory of an engine, in blocks as vLLM's hybrid KV cache manager counts them.

vLLM (0.32, `vllm/v1/core/kv_cache_utils.py`) splits the layers of each kind into groups of equal
numbers of layers, so that a block has the same size in every group, and all groups take blocks from
one pool. A group is written as its window in tokens, None for full attention, `STATE` or
`STATE_INSIDE` for layers that keep a state of constant size, or -n for layers that attend within
chunks of n tokens, n > 1.

If a token has fewer or more bytes in the layers with a window than in those without, the blocks of
one kind hold more tokens (`unify_kv_cache_spec_page_size`). `Lengths` are those of a block with
full attention and of each other block, in multiples of `block_tokens`; one is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from servers.basics.clock import quotient

Groups = tuple[int | None, ...]
Lengths = tuple[int, int]

EVEN: Final[Lengths] = (1, 1)
FULL_ATTENTION: Final[Groups] = (None,)
STATE: Final = 0
STATE_INSIDE: Final = -1
"""Layers whose kernels save the state at a block boundary inside a chunk, as Mamba 2's do."""
CONCURRENT_STEPS: Final = 2
"""Number of steps that vLLM schedules before the first of them ends. It reserves window blocks for
them when it reports the KV memory in tokens."""


@dataclass(frozen=True, slots=True)
class KvMemory:
    kv_blocks: int
    """Blocks of the pool."""
    block_tokens: int
    kv_groups: Groups = field(default=FULL_ATTENTION, kw_only=True)
    """The groups of layers with their own blocks, in vLLM's order."""
    block_lengths: Lengths = field(default=EVEN, kw_only=True)

    @property
    def keeps_states(self) -> bool:
        return any(map(is_state, self.kv_groups))

    def turn_blocks(self, tokens: int, step_tokens: int) -> int:
        """Return the number of blocks that must be free for a turn of `tokens` tokens that runs
        alone, in steps of at most `step_tokens` tokens."""
        full, local = (self.block_tokens * length for length in self.block_lengths)
        return sum(
            -(-tokens // full)
            if window is None
            else min(-(-tokens // local), most_window_blocks(window, step_tokens, local))
            for window in self.kv_groups
        )

    def longest_turn(self, step_tokens: int) -> int:
        """Return the number of tokens of the longest turn that the pool can hold."""
        if len(self.kv_groups) == 1:
            return self.kv_blocks * self.block_tokens
        fits, too_long = 0, self.kv_blocks * max(self.block_lengths) + 1
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self.turn_blocks(middle * self.block_tokens, step_tokens) <= self.kv_blocks:
                fits = middle
            else:
                too_long = middle
        return fits * self.block_tokens

    def kv_tokens(self, step_tokens: int, max_model_len: int) -> int:
        """Return the memory in tokens, as vLLM prints it: the number of turns of `max_model_len`
        tokens that the pool can hold, times that length."""
        if len(self.kv_groups) == 1:
            return self.kv_blocks * self.block_tokens
        full, local = (self.block_tokens * length for length in self.block_lengths)
        per_turn = 0
        for window in self.kv_groups:
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
        return int(quotient(self.kv_blocks, per_turn) * max_model_len)


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


def is_state(group: int | None) -> bool:
    return group in (STATE, STATE_INSIDE)


def is_chunk(group: int | None) -> bool:
    return group is not None and group < STATE_INSIDE
