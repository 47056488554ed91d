"""Reloads of KV from offload tiers, before a turn runs.

A loading turn owns its device blocks from the start of the read and runs only after it; the batch
runs in the meantime. Depths and sizes are in blocks, times in picoseconds.
"""

from __future__ import annotations

import heapq
from collections import deque

from servers.sim.kv import DeviceKV, Path
from servers.sim.sequence import Phase, Sequence
from servers.sim.tiers import Tier


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

    def reserved_blocks(self, partial: Sequence | None) -> int:
        """Return the number of blocks that the turns ahead of a new load (loading and loaded ones,
        and the partial turn) still need for their prompts. The new load must not use these, since
        it keeps its blocks without making progress."""
        ahead = [s for _, _, s in self.loading if s.finished_ps is None] + list(self.loaded)
        if partial is not None:
            ahead.append(partial)
        return sum(-(-s.target // self._block) - s.owner.blocks for s in ahead)

    def start(
        self, sequence: Sequence, loads: list[tuple[Tier, int]], now_ps: int, cpu_ps: int
    ) -> None:
        """Allocate device blocks for the loads and queue the reads, which start after `cpu_ps` of
        CPU time."""
        done_ps = start_ps = now_ps + cpu_ps
        for tier, blocks in loads:
            tier.touch(sequence.owner.path, sequence.owner.depth + blocks)
            done_ps = max(done_ps, tier.read(blocks, start_ps))
            self._kv.allocate(sequence.owner, blocks)
        sequence.enter(Phase.LOAD, now_ps)
        heapq.heappush(self.loading, (done_ps, sequence.view.id, sequence))

    def finish_due(self, now_ps: int) -> None:
        """Move the turns whose reads are complete at `now_ps` to `loaded`, in order of time."""
        while self.loading and self.loading[0][0] <= now_ps:
            sequence = heapq.heappop(self.loading)[2]
            if sequence.finished_ps is None:
                self._kv.commit(sequence.owner, sequence.owner.blocks)
                sequence.computed = sequence.owner.depth * self._block
                self.loaded.append(sequence)

    def next_done_ps(self) -> int | None:
        """Return when the next read is complete; None if there is none."""
        return self.loading[0][0] if self.loading else None

    def store(self, sequence: Sequence) -> None:
        """Store the turn's full blocks in every tier."""
        for tier in self.tiers:
            tier.store(sequence.owner.path, sequence.owner.depth)
