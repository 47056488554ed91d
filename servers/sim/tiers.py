"""Offload tiers: KV of ended and preempted turns in host DRAM and on SSD.

This models a store that does not block the engine, such as LMCache and vLLM's own offloading.
Blocks are copied to every tier while they are computed, in whole chunks. The link is an order of
magnitude faster than any prefill, so that a turn's context is stored when the turn ends. The least
recently used prefix is evicted first, tail first. Reads on a tier's link are sequential. Depths are
in blocks, times in picoseconds.
"""

from __future__ import annotations

from collections import OrderedDict

from servers.profiles import Profile
from servers.sim.kv import Path, Segment
from servers.sim.links import Link
from servers.sim.settings import Offload


class Tier:
    """A KV store outside the device."""

    def __init__(
        self, name: str, blocks: int, chunk_blocks: int, bytes_per_block: int, bytes_per_s: float
    ) -> None:
        self.name = name
        self.blocks = blocks
        self.used = 0
        self._chunk = chunk_blocks
        self.link = Link(bytes_per_block, bytes_per_s)
        self._ends: OrderedDict[Segment, int] = OrderedDict()
        """Depth to which each segment is stored, least recently used first."""

    def lookup(self, path: Path, limit: int) -> int:
        """Return the depth of the longest stored prefix, in whole chunks, within `limit`."""
        hit = 0
        for segment, exit_depth in path:
            stored = self._ends.get(segment, segment.start)
            reach = min(min(stored, exit_depth), limit)
            hit = max(hit, reach)
            if reach < exit_depth:
                break
        return hit - hit % self._chunk

    def store(self, path: Path, depth: int) -> None:
        """Store the prefix of `depth` blocks, in whole chunks, and evict the oldest if needed."""
        depth -= depth % self._chunk
        for segment, exit_depth in reversed(path):
            reach = min(exit_depth, depth)
            if reach <= segment.start:
                continue
            old = self._ends.get(segment, segment.start)
            if reach > old:
                self.used += reach - old
                self._ends[segment] = reach
            self._ends.move_to_end(segment)
        while self.used > self.blocks:
            self._evict()

    def touch(self, path: Path, depth: int) -> None:
        """Mark the prefix as recently used."""
        for segment, _ in reversed(path):
            if segment.start < depth and segment in self._ends:
                self._ends.move_to_end(segment)

    def _evict(self) -> None:
        segment, end = next(iter(self._ends.items()))
        low = max(segment.start, end - max(self._chunk, self.used - self.blocks))
        self.used -= end - low
        if low == segment.start:
            del self._ends[segment]
        else:
            self._ends[segment] = low


def build_tiers(offload: Offload | None, profile: Profile) -> list[Tier]:
    """Build the DRAM tier and the SSD tier, each if its capacity is above 0."""
    if offload is None:
        return []
    chunk = max(1, offload.chunk_tokens // profile.block_tokens)
    block_bytes = profile.block_tokens * profile.kv_bytes_per_token
    sizes = (
        ("dram", offload.dram_gb, profile.dram_bytes_per_s),
        ("ssd", offload.ssd_gb, profile.ssd_bytes_per_s),
    )
    return [
        Tier(name, int(gb * 1e9) // block_bytes, chunk, block_bytes, rate)
        for name, gb, rate in sizes
        if gb > 0
    ]
