"""A link over which KV is read, one read after the other."""

from __future__ import annotations

from servers.basics.clock import PS_PER_S


class Link:
    def __init__(self, bytes_per_block: int, bytes_per_s: float, latency_s: float = 0.0) -> None:
        """`latency_s`: time from the request of a read to its first byte, while the link may be
        busy with earlier reads."""
        self._block_ps = bytes_per_block / bytes_per_s * PS_PER_S
        self._latency_ps = round(latency_s * PS_PER_S)
        self._idle_from_ps = 0
        """When the last queued read is complete."""

    def read(self, blocks: int, now_ps: int) -> int:
        """Queue a read of `blocks` blocks at `now_ps`; return when it is complete."""
        begin_ps = max(self._idle_from_ps, now_ps + self._latency_ps)
        self._idle_from_ps = begin_ps + round(blocks * self._block_ps)
        return self._idle_from_ps
