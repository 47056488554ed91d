"""The scheduler of a model with sliding-window layers (see `servers.sim.windows`), or with chunked
local attention (`servers.sim.chunks`).

In addition to what `Scheduler` does, the running turns free blocks that leave the window, in every
step and before their next slot is allocated, and the admission of a turn needs two checks as in
vLLM's `allocate_slots`. Under whole-prompt admission its prompt must fit, where a window group
needs at most the blocks of a window and one step. And the first chunk must fit.
"""

from __future__ import annotations

import heapq
from typing import cast

from servers.profiles import Profile
from servers.profiles.kv_memory import is_chunk, most_window_blocks
from servers.sim.batching import Batch, RunningTurns
from servers.sim.chunks import ChunkKV
from servers.sim.kv import BlockOwner, DeviceKV
from servers.sim.reloads import BlockDemand
from servers.sim.scheduler import Scheduler
from servers.sim.sequence import Sequence
from servers.sim.windows import WindowKV, WindowOwner


class WindowTurns(RunningTurns):
    """The running turns. Each one's blocks are in its own tables."""

    def __init__(self, kv: WindowKV, profile: Profile, step_tokens: int) -> None:
        super().__init__(kv, profile, step_tokens)
        self._windows = kv

    def prepare_slots(self, sequence: Sequence) -> None:
        self._windows.leave_window(owner_of(sequence), sequence.computed)

    def missing_for_token(self, sequence: Sequence) -> int:
        return self.missing_blocks(sequence, 1)

    def missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        high = -(-(sequence.computed + tokens) // self._block)
        low = owner_of(sequence).high
        return self._windows.grown(low, high) if high > low else 0

    def take_slot(self, sequence: Sequence, blocks: int) -> None:
        owner, tokens = owner_of(sequence), sequence.computed + 1
        if blocks:
            self._windows.extend(owner, tokens)
        self._windows.hash_decode(owner, tokens)

    def extend(self, sequence: Sequence, tokens: int) -> None:
        self._windows.extend(owner_of(sequence), tokens)

    def hash_full(self, sequence: Sequence, tokens: int) -> None:
        owner = owner_of(sequence)
        self._windows.hash_full(owner, tokens)
        self._windows.hash_windows(owner, tokens, sequence.view.prompt_tokens)
        self._windows.hash_later(owner, sequence.view.prompt_tokens)

    def compute(self, sequence: Sequence, chunk: int, batch: Batch) -> None:
        super().compute(sequence, chunk, batch)
        batch.single_step = True

    def settle(self, sequence: Sequence, has_slot: bool) -> None:
        owner = owner_of(sequence)
        owner.changes_tick = 0
        self._windows.hash_full(owner, sequence.computed)

    def extend_all(self, batch: Batch) -> bool:
        """As with full attention, except that the order matters in which turns free blocks: return
        False also if a turn was admitted after a partial one. With blocks of two lengths, the
        decodes may need fewer blocks than are counted."""
        chunks = self.next_chunks()
        if chunks and (len(chunks) > 1 or next(reversed(self.by_id.values())) is not chunks[0][0]):
            return False
        needed = self.decodes.blocks_needed(1) * self._windows.groups
        if needed + self._missing_for(chunks) > self._windows.free:
            return False
        self._take_slots(self.decodes.tick, self.decodes.tick)
        for sequence, chunk in chunks:
            self.prepare_slots(sequence)
            self.compute(sequence, chunk, batch)
            self.hash_full(sequence, sequence.computed + chunk)
        return True

    def blocks_ahead(self, batch: Batch, steps: int) -> int:
        return self.decodes.blocks_needed(steps - 1, after=1) * self._windows.groups

    def allocate_ahead(self, batch: Batch, steps: int) -> None:
        self._take_slots(self.decodes.tick + 1, self.decodes.tick + steps - 1)

    def _take_slots(self, first: int, last: int) -> None:
        """Free, allocate and hash the decodes' blocks at the given ticks, tick by tick and in order
        of admission. Blocks that are freed may be allocated again in the same stride."""
        kv, block = self._windows, self._block
        due: list[tuple[int, int, int, WindowOwner]] = []
        for sequence in self.by_id.values():
            joined = sequence.joined_tick
            if joined is not None and (owner := owner_of(sequence)).changes_tick <= last:
                tick = max(first, owner.changes_tick)
                due.append((tick, sequence.admission, sequence.joined_computed - joined, owner))
        heapq.heapify(due)
        while due:
            tick, admission, start, owner = due[0]
            computed = start + tick
            kv.leave_window(owner, computed)
            computed += 1
            kv.extend(owner, computed)
            kv.hash_decode(owner, computed)
            changes = min(kv.next_leave(computed), computed + -computed % block)
            if computed < owner.hash_tokens:
                changes = min(changes, owner.hash_tokens - 1)
            owner.changes_tick = changes - start
            if owner.changes_tick <= last:
                heapq.heapreplace(due, (owner.changes_tick, admission, start, owner))
            else:
                heapq.heappop(due)


class WindowScheduler(Scheduler):
    def _build(self, profile: Profile) -> tuple[DeviceKV, RunningTurns]:
        groups, block = profile.kv_groups, profile.block_tokens
        chunks = any(map(is_chunk, groups))
        if chunks:
            kv: WindowKV = ChunkKV(profile.kv_blocks, groups, block)
        else:
            kv = WindowKV(profile.kv_blocks, groups, block, profile.block_lengths)
        self._windows = kv
        self._most_window_blocks = most_window_blocks(
            next(group for group in groups if group is not None),
            self.limits.step_tokens,
            kv.window_tokens,
        )
        return kv, WindowTurns(kv, profile, self.limits.step_tokens)

    def add(self, sequence: Sequence) -> None:
        sequence.owner = self._windows.owner(sequence.submission.path)
        super().add(sequence)

    def _retain_blocks(self, sequence: Sequence, whole_request: bool) -> tuple[BlockOwner, int]:
        self._windows.take_left(owner_of(sequence), sequence.view.prompt_tokens)
        return super()._retain_blocks(sequence, whole_request)

    def _demand(self, sequence: Sequence, budget: int) -> BlockDemand:
        hit = self._windows.find(owner_of(sequence), (sequence.target - 1) // self._block)
        computed = hit.depth * self._block
        chunk = min(sequence.target - computed, budget)
        needed = self._windows.grown(hit.depth, self._depth(computed + chunk))
        if not self._first_chunk:
            whole, most = self._depth(sequence.target), self._most_window_blocks
            needed = max(needed, self._windows.grown(hit.depth, whole, most))
        return BlockDemand(hit.depth, [], needed + hit.idle)

    def _depth(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _keep_free_for(self, head: Sequence, batch: Batch) -> None:
        """Compute a single step, since running turns free blocks."""

    def _make_room_for_head(self, head: Sequence, budget: int, batch: Batch) -> bool:
        has_room = super()._make_room_for_head(head, budget, batch)
        batch.single_step |= not has_room
        return has_room


def owner_of(sequence: Sequence) -> WindowOwner:
    return cast(WindowOwner, sequence.owner)
