"""Paged KV with prefix-hash reuse and an LRU free queue, as vLLM v1 keeps it, by runs of blocks.

vLLM hashes each full block together with all blocks before it. Here the contents of all prompts
form a tree of `Segment`s, known from the trace, so that a block is named by its segment and its
depth (its index in the sequence), and whole runs of blocks move at once. Block for block this does
what vLLM's `BlockPool` does: freed blocks keep their contents and queue up tail first, a hit takes
them out of the queue, an allocation takes never-hashed blocks first and then evicts from the front.

Departure: two turns that compute the same block end up sharing one copy; vLLM keeps both until
they are freed. Depths and counts are in blocks.
"""

from __future__ import annotations

from collections import OrderedDict


class Segment:
    """A run of tokens that prompts share as far as they share it at all."""

    __slots__ = ("_idle", "end", "holds", "start", "top")

    def __init__(self, start: int) -> None:
        self.start = start
        """Depth of its first block. A block that straddles two segments belongs to the later."""
        self.end = start
        """Blocks [start, end) are resident."""
        self.top = start
        """Blocks [start, top) are in use; [top, end) wait in the free queue."""
        self.holds: dict[int, int] = {}
        """Number of holders by the depth they hold."""
        self._idle: list[_Idle] = []


class _Idle:
    """Blocks [low, high) of a segment in the free queue; evicted from the high end."""

    __slots__ = ("high", "key", "low", "segment")

    def __init__(self, segment: Segment, low: int, high: int, key: int) -> None:
        self.segment = segment
        self.low = low
        self.high = high
        self.key = key


Path = tuple[tuple[Segment, int], ...]
"""Where a sequence lies in the tree: segments in order, each with the depth at which the sequence
leaves it (the last: at which it ends)."""


class Holder:
    """What one turn, or the pin that it left, holds: full blocks on its path, and blank ones."""

    __slots__ = ("_at", "blank", "depth", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.depth = 0
        """Full blocks held, counted from the start of the sequence."""
        self.blank = 0
        """Blocks held that are not full yet, or not committed."""
        self._at = 0

    @property
    def blocks(self) -> int:
        return self.depth + self.blank


class DeviceKV:
    """All KV blocks of one engine."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = blocks
        """Blocks that an allocation may take: blank or evictable."""
        self._blank = blocks
        self._queue: OrderedDict[int, _Idle] = OrderedDict()
        self._serial = 0

    @property
    def used(self) -> int:
        return self.blocks - self.free

    def lookup(self, path: Path, limit: int) -> tuple[int, int]:
        """Depth of the longest resident prefix within `limit`, and how much of it is idle (taking
        it lowers `free`)."""
        hit = idle = 0
        for segment, leave in path:
            reach = segment.end if segment.end < leave else leave
            if reach > limit:
                reach = limit
            if reach > hit:
                in_use = segment.top if segment.top > hit else hit
                if reach > in_use:
                    idle += reach - in_use
                hit = reach
            if reach < leave:
                break
        return hit, idle

    def take_hit(self, holder: Holder, depth: int) -> None:
        """Hold the resident prefix of so many blocks. The holder must be empty."""
        for at, (segment, leave) in enumerate(holder.path):
            holder._at = at
            reach = depth if depth < leave else leave
            if reach > segment.start:
                self._hold(segment, reach)
            if depth <= leave:
                break
        holder.depth = depth

    def allocate(self, holder: Holder, blocks: int) -> None:
        """Take so many blocks (at most `free`), evicting what is oldest in the free queue."""
        holder.blank += blocks
        self.free -= blocks
        if blocks <= self._blank:
            self._blank -= blocks
            return
        blocks -= self._blank
        self._blank = 0
        queue = self._queue
        while blocks:
            idle = next(iter(queue.values()))
            size = idle.high - idle.low
            if size <= blocks:
                del queue[idle.key]
                del idle.segment._idle[0]
                idle.segment.end = idle.low
                blocks -= size
            else:
                idle.high -= blocks
                idle.segment.end = idle.high
                blocks = 0

    def commit(self, holder: Holder, depth: int) -> None:
        """The holder's blocks up to `depth` are full: hash them, so that others can hit them."""
        path = holder.path
        while holder.depth < depth:
            segment, leave = path[holder._at]
            if holder.depth >= leave:
                holder._at += 1
                continue
            old = holder.depth
            new = leave if leave < depth else depth
            holds = segment.holds
            if old > segment.start:
                if holds[old] == 1:
                    del holds[old]
                else:
                    holds[old] -= 1
            twice = min(segment.end, new) - old
            self._hold(segment, new)
            if new > segment.end:
                segment.end = new
            if twice > 0:
                self._blank += twice
                self.free += twice
            holder.blank -= new - old
            holder.depth = new

    def release_blank(self, holder: Holder) -> None:
        """Give back what is not full: it can never be hit and is reused first."""
        self._blank += holder.blank
        self.free += holder.blank
        holder.blank = 0

    def release(self, holder: Holder) -> None:
        """Give everything back; the tail is queued, and so evicted, before the head."""
        self.release_blank(holder)
        depth = holder.depth
        for at in range(holder._at, -1, -1):
            segment, leave = holder.path[at]
            held = depth if depth < leave else leave
            if held > segment.start:
                self._drop(segment, held)
        holder.depth = holder._at = 0

    def _hold(self, segment: Segment, depth: int) -> None:
        segment.holds[depth] = segment.holds.get(depth, 0) + 1
        if depth <= segment.top:
            return
        idle = segment._idle
        while idle and idle[-1].low < depth:
            last = idle[-1]
            if last.high > depth:
                self.free -= depth - last.low
                last.low = depth
                break
            self.free -= last.high - last.low
            del self._queue[last.key]
            idle.pop()
        segment.top = depth

    def _drop(self, segment: Segment, depth: int) -> None:
        holds = segment.holds
        if holds[depth] > 1:
            holds[depth] -= 1
            return
        del holds[depth]
        if depth < segment.top:
            return
        top = max(holds) if holds else segment.start
        self._serial += 1
        idle = _Idle(segment, top, segment.top, self._serial)
        self.free += segment.top - top
        segment.top = top
        segment._idle.append(idle)
        self._queue[idle.key] = idle
