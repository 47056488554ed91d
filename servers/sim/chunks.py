"""Paged KV of a model with chunked local attention, as in vLLM v1's hybrid KV cache manager.

Some layers attend to all tokens, and the others only to tokens of the chunk of constant length that
a token is in (Llama 4). As in vLLM 0.32:

- Blocks of the chunks before are freed when a turn that begins the next chunk gets its next slot.
- All full blocks are hashed, also of answers.
- A prefix hit needs the full-attention blocks from the start of the sequence, and the blocks of the
  other groups from the start of the chunk in which the longest hit of full attention ends. If one
  of these is missing, the hit ends before it. So it never ends before that chunk.

A chunk must be a whole number of blocks.
"""

from __future__ import annotations

from servers.profiles.kv_memory import Groups
from servers.sim.kv import Path
from servers.sim.windows import WindowKV, WindowOwner


class ChunkKV(WindowKV):
    """All KV blocks of one engine."""

    def __init__(self, blocks: int, groups: Groups, block_tokens: int) -> None:
        """`groups`: in vLLM's order; exactly one has full attention, and the others have chunks of
        one length."""
        windows = tuple(None if group is None else -group for group in groups)
        super().__init__(blocks, windows, block_tokens)

    def passed(self, tokens: int) -> int:
        return tokens // self.window * (self.window // self._block)

    def next_leave(self, tokens: int) -> int:
        return max(self.window, tokens + -tokens % self.window)

    def _window_hit(self, path: Path, longest: int) -> int:
        begin = self.passed(longest * self._block)
        return min([self._reach(path, group, begin, longest) for group in self._local])

    def leave_window(self, owner: WindowOwner, computed: int) -> None:
        """Free the blocks before the chunk of the next token. They are full, and hashed first."""
        self._hash_chunks(owner, self.passed(computed))
        super().leave_window(owner, computed)

    def hash_full(self, owner: WindowOwner, tokens: int) -> None:
        """Hash the full blocks of all groups."""
        super().hash_full(owner, tokens)
        self._hash_chunks(owner, tokens // self._block)

    def hash_windows(self, owner: WindowOwner, tokens: int, prompt_tokens: int) -> None:
        """Do nothing: `hash_full` hashes all groups."""

    def _hash_chunks(self, owner: WindowOwner, end: int) -> None:
        end = min(end, owner.high)
        if end > owner.hashed:
            self._hash_local(owner, owner.hashed, end)
            owner.hashed = end

    def take_left(self, owner: WindowOwner, prompt_tokens: int) -> None:
        """Do nothing: the next turn's hit needs the last chunk only, which the turn has."""
