"""Loads of KV from offload tiers or from a prefill engine, before a turn runs.

A loading turn owns its device blocks from the start of the read and runs only after it; the batch
runs in the meantime. Depths and sizes are in blocks, times in picoseconds.
"""

from __future__ import annotations

import heapq
from collections import deque

from servers.sim.kv import DeviceKV, Path
from servers.sim.sequence import Phase, Sequence
from servers.sim.tiers import Tier


class BlockDemand:
    """The blocks that the admission of a waiting turn requires."""

    __slots__ = ("hit", "loads", "needed", "waits")

    def __init__(
        self, hit: int, loads: list[tuple[Tier, int]], needed: int, *, waits: bool = False
    ) -> None:
        self.hit = hit
        """Depth of its prefix on the device."""
        self.loads = loads
        """The tiers that extend the prefix, each with its number of blocks."""
        self.needed = needed
        """Number of blocks that must be free."""
        self.waits = waits
        """Whether the step cannot admit the turn however many blocks are free."""


class Reloads:
    def __init__(self, tiers: list[Tier], kv: DeviceKV, block_tokens: int) -> None:
        self.tiers = tiers
        self.loading: list[tuple[int, int, Sequence]] = []
        """Turns whose KV is being read, by completion time of the read. Aborted turns stay until
        that time."""
        self.loaded: deque[Sequence] = deque()
        """Turns whose KV has been read. They run before any waiting turn. Until then they are
        in `Phase.LOAD`."""
        self._kv = kv
        self._block = block_tokens

    def find(self, path: Path, limit: int, hit: int) -> list[tuple[Tier, int]]:
        """Return the tiers that extend a device hit of `hit` blocks within `limit`, each with the
        number of blocks that it adds."""
        reach, loads = hit, []
        for tier in self.tiers:
            stored = tier.lookup(path, limit)
            if stored > reach:
                loads.append((tier, stored - reach))
                reach = stored
        return loads

    def reserved_blocks(self, partial: list[Sequence]) -> int:
        """Return the number of blocks that the turns ahead of a new load (loading and loaded ones,
        and partial turns) still need for their prompts. The new load must not use these, since
        it keeps its blocks without making progress."""
        ahead = [*self._not_aborted(), *self.loaded, *partial]
        return sum(-(-s.target // self._block) - s.owner.blocks for s in ahead)

    def turns(self) -> int:
        """Return the number of turns that load or have loaded and wait to run."""
        return len(self._not_aborted()) + len(self.loaded)

    def _not_aborted(self) -> list[Sequence]:
        return [s for _, _, s in self.loading if s.finished_ps is None]

    def most_needed(self, sequence: Sequence, partial: list[Sequence]) -> int:
        """Return the number of blocks with which a waiting turn can be admitted, while blocks are
        only allocated and, at most until that number is free, evicted."""
        path, limit = sequence.owner.path, (sequence.target - 1) // self._block
        hit, idle = self._kv.lookup(path, limit)
        needed = -(-sequence.target // self._block) - hit + idle
        # A load would reserve blocks. An eviction of the turn's own blocks may cause one.
        reserved = self.reserved_blocks(partial)
        if self.find(path, limit, hit):
            return needed + reserved
        others = self._kv.free - self._kv.allocatable_before(path, self._kv.free - needed)
        return min(needed + reserved, max(needed, others))

    def start(
        self, sequence: Sequence, loads: list[tuple[Tier, int]], now_ps: int, cpu_ps: int
    ) -> None:
        """Allocate device blocks for the loads and queue the reads, which start after `cpu_ps` of
        CPU time."""
        done_ps = start_ps = now_ps + cpu_ps
        for tier, blocks in loads:
            tier.touch(sequence.owner.path, sequence.owner.depth + blocks)
            done_ps = max(done_ps, tier.link.read(blocks, start_ps))
            self._kv.allocate(sequence.owner, blocks)
        self._push(sequence, now_ps, done_ps)

    def fetch(self, sequence: Sequence, now_ps: int) -> None:
        """Allocate device blocks for the part of the prompt that is not on the device, and queue
        its transfer from the prefill engine. A turn that is preempted later computes its prompt."""
        fetch, sequence.fetch = sequence.fetch, None
        if fetch is None:
            raise RuntimeError("no prefill engine has the KV of the turn")
        blocks = -(-sequence.target // self._block) - sequence.owner.blocks
        self._kv.allocate(sequence.owner, blocks)
        self._push(sequence, now_ps, fetch(blocks, now_ps))

    def _push(self, sequence: Sequence, now_ps: int, done_ps: int) -> None:
        sequence.enter(Phase.LOAD, now_ps)
        heapq.heappush(self.loading, (done_ps, sequence.view.id, sequence))

    def finish_due(self, now_ps: int) -> None:
        """Move the turns whose reads are complete at `now_ps` to `loaded`, in order of time. The
        last token of a prompt is computed even if a prefill engine sent its KV, as in vLLM."""
        while self.loading and self.loading[0][0] <= now_ps:
            sequence = heapq.heappop(self.loading)[2]
            if sequence.finished_ps is None:
                tokens = min(sequence.owner.blocks * self._block, sequence.target)
                self._kv.commit(sequence.owner, tokens // self._block)
                sequence.computed = min(tokens, sequence.target - 1)
                self.loaded.append(sequence)

    def next_done_ps(self) -> int | None:
        """Return when the next read is complete; None if there is none."""
        return self.loading[0][0] if self.loading else None

    def store(self, sequence: Sequence) -> None:
        """Store the turn's full blocks in every tier."""
        for tier in self.tiers:
            tier.store(sequence.owner.path, sequence.owner.depth)
