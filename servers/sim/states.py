"""Paged KV of a model with layers that keep a state of constant size, as in vLLM v1.

Layers with linear attention or a state-space model keep one state per turn instead of KV per token.
vLLM stores it in pages as large as the full-attention layers', so these layers form KV
groups beside the one with full attention, with blocks from the same pool. As in vLLM 0.32 with
prefix caching (`mamba_cache_mode` "align", its default):

- A block of such a group holds the state after the last token that was computed in it. A step
  allocates only the block in which its chunk ends, and none for the blocks that it passes. The
  state before the step is freed when the turn gets its next slot.
- A prefix hit needs the full-attention blocks from the start of the sequence, and the state at the
  end of the hit.
- Only states at block boundaries from which a later turn can resume are hashed: at the last one in
  the prompt, and at the end of the longest hit of the full-attention group
  (`prefix_cache_retention_interval` 0, vLLM's default). So chunks of prompts end there (`align`).
- A state that a step computes cannot be hit in the same step.

With kernels that save a state inside a chunk (`inside`), the last chunk of a prompt gets a block
for the state at its last boundary, and does not end there.

The states of a turn are like the blocks of a window of two tokens, most of which are missing.

vLLM frees the state at the last boundary in the prompt once the turn has the next one, and may
evict it before the turn ends. A pin without it cannot be hit. So if the policy has ever pinned,
turns keep this state from the end of their prompt on, as with the vLLM plug-in.
"""

from __future__ import annotations

from typing import cast

from servers.profiles.kv_memory import Groups
from servers.sim.kv import BlockOwner, Path, Segment
from servers.sim.windows import Held, WindowKV, WindowOwner

WINDOW = 2
"""The next token needs the state after the last one."""


class StateOwner(WindowOwner):
    """The block tables of one turn, or the blocks of its pin."""

    __slots__ = ("kept", "unhashed")

    def __init__(self, path: Path, groups: int) -> None:
        super().__init__(path, groups)
        self.unhashed: list[int] = []
        """Positions of the states without a hash."""
        self.kept: list[Held] = []
        """The state at the prompt's last boundary in each group, held once more for a pin."""


class StateKV(WindowKV):
    """All KV blocks of one engine."""

    def __init__(self, blocks: int, groups: Groups, block_tokens: int) -> None:
        """`groups`: in vLLM's order; exactly one has full attention."""
        windows = tuple(None if group is None else WINDOW for group in groups)
        super().__init__(blocks, windows, block_tokens)
        self.computing: set[tuple[Segment, int]] = set()
        """The blocks at whose ends the current step computes states."""

    def owner(self, path: Path) -> StateOwner:
        return StateOwner(path, self.groups)

    def is_computing(self, owner: WindowOwner, depth: int) -> bool:
        """Return whether the current step computes the state that a hit of `depth` blocks needs."""
        return depth > 0 and self._content(owner, depth - 1) in self.computing

    def _content(self, owner: WindowOwner, position: int) -> tuple[Segment, int]:
        parts = self._parts(owner.path, self._full, position, position + 1)
        return parts[0][0], position

    def extend(self, owner: WindowOwner, tokens: int, states: int = 1) -> None:
        """Allocate blocks for a context of `tokens` tokens, and for the states in its last `states`
        blocks."""
        high = -(-tokens // self._block)
        if high > owner.high:
            states = min(states, high - owner.high)
            self.allocate(owner, high - owner.high + states * (self.groups - 1))
            cast(StateOwner, owner).unhashed += range(high - states, high)
            owner.high = high

    def _unhashed_before(self, owner: WindowOwner, low: int, passed: int) -> int:
        owner = cast(StateOwner, owner)
        before = len(owner.unhashed)
        owner.unhashed = [position for position in owner.unhashed if position >= low]
        return before - len(owner.unhashed)

    def hash_windows(self, owner: WindowOwner, tokens: int, prompt_tokens: int) -> None:
        """Hash the states of `tokens` computed tokens from which a turn can resume."""
        owner = cast(StateOwner, owner)
        end, last = tokens // self._block, (prompt_tokens - 1) // self._block
        for boundary in sorted((last, owner.boundary)):
            position = boundary - 1
            if owner.hashed <= position < end and position in owner.unhashed:
                owner.unhashed.remove(position)
                self._hash_local(owner, position, boundary)
                self.computing.add(self._content(owner, position))
        # vLLM registers the state at the prompt's last boundary again in a step that begins there.
        held = owner.held[self._local[0]]
        if end == last and any(part.low < last <= part.high for part in held):
            self.computing.add(self._content(owner, last - 1))
        owner.hashed = max(owner.hashed, end)

    # Pins ---------------------------------------------------------------------------------------

    def keep(self, owner: StateOwner, prompt_tokens: int) -> None:
        """Hold the states at the prompt's last boundary once more, if the turn still has them."""
        position = (prompt_tokens - 1) // self._block - 1
        for group in self._local:
            for part in owner.held[group]:
                if part.low <= position < part.high:
                    part.copy.retain(position, position + 1, self._queue)
                    owner.kept.append(Held(part.copy, position, position + 1))

    def _drop_kept(self, owner: StateOwner) -> None:
        for part in owner.kept:
            self.free += part.copy.release(part.low, part.high, self._queue)
        owner.kept.clear()

    def take_left(self, owner: WindowOwner, prompt_tokens: int) -> None:
        self._drop_kept(cast(StateOwner, owner))
        super().take_left(owner, prompt_tokens)

    def release(self, owner: BlockOwner) -> None:
        self._drop_kept(cast(StateOwner, owner))
        super().release(owner)
        cast(StateOwner, owner).unhashed = []
