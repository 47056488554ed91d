"""Offload tiers: KV of ended and preempted turns in host DRAM and on SSD.

Models a non-blocking store as LMCache and vLLM's offloading are: blocks are copied out while they
are computed (the link is an order of magnitude faster than any prefill, so a turn's context is
there when it ends), in whole chunks and to every tier, and the least recently used prefix is
dropped tail first. Reads queue on the tier's link, one after the other, and do not block the
engine. Depths in blocks, times in picoseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from servers.profiles import PS_PER_S, Profile
from servers.sim.kv import Path, Segment


@dataclass(frozen=True, slots=True)
class Offload:
    """How much KV may lie outside the device, in 10⁹ bytes, and in what pieces."""

    dram_gb: float
    ssd_gb: float = 0.0
    chunk_tokens: int = 256
    """LMCache's default chunk."""


class Tier:
    """One place for KV outside the device."""

    def __init__(
        self, name: str, blocks: int, chunk_blocks: int, bytes_per_block: int, bytes_per_s: float
    ) -> None:
        self.name = name
        self.blocks = blocks
        self.used = 0
        self._chunk = chunk_blocks
        self._block_ps = bytes_per_block / bytes_per_s * PS_PER_S
        self._ends: OrderedDict[Segment, int] = OrderedDict()
        """Segment → depth to which it is stored here; least recently used first."""
        self._free_at = 0

    def lookup(self, path: Path, limit: int) -> int:
        """Depth of the longest stored prefix, in whole chunks, within `limit`."""
        hit = 0
        for segment, leave in path:
            reach = min(self._ends.get(segment, segment.start), leave, limit)
            hit = max(hit, reach)
            if reach < leave:
                break
        return hit - hit % self._chunk

    def store(self, path: Path, depth: int) -> None:
        """Hold the prefix of `depth` blocks, in whole chunks; what is oldest goes if need be."""
        depth -= depth % self._chunk
        for segment, leave in reversed(path):
            reach = min(leave, depth)
            if reach <= segment.start:
                continue
            had = self._ends.get(segment, segment.start)
            if reach > had:
                self.used += reach - had
                self._ends[segment] = reach
            self._ends.move_to_end(segment)
        while self.used > self.blocks:
            self._evict()

    def touch(self, path: Path, depth: int) -> None:
        """A read makes the prefix recently used."""
        for segment, _ in reversed(path):
            if segment.start < depth and segment in self._ends:
                self._ends.move_to_end(segment)

    def read(self, blocks: int, now: int) -> int:
        """When a read of so many blocks, queued now, is done."""
        self._free_at = max(self._free_at, now) + round(blocks * self._block_ps)
        return self._free_at

    def _evict(self) -> None:
        segment, end = next(iter(self._ends.items()))
        low = max(segment.start, end - max(self._chunk, self.used - self.blocks))
        self.used -= end - low
        if low == segment.start:
            del self._ends[segment]
        else:
            self._ends[segment] = low


def build_tiers(offload: Offload | None, profile: Profile) -> list[Tier]:
    """DRAM, then SSD, as far as they are given."""
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
