"""Paged KV with prefix caching and an LRU free queue, as in vLLM v1, in runs of blocks.

vLLM hashes each full block together with all blocks before it. Here the contents of all prompts
form a tree of `Segment`s, known from the trace, so that a segment and a depth (an index in the
sequence) identify a block, and runs of blocks are processed at once. Each block is treated as in
vLLM's `BlockPool`: freed blocks keep their contents and enter the free queue tail first, a hit
removes them from the queue, and an allocation takes blank blocks first and then evicts from the
front of the queue.

Departure: two turns that compute the same block share one copy; vLLM keeps both until they are
freed. Depths and counts are in blocks.
"""

from __future__ import annotations

from typing import cast

from servers.sim.copies import Copy
from servers.sim.free_queue import BlockRun, FreeQueue


class Segment:
    """A run of blocks of the tree of contents; a prompt may contain only its first part."""

    __slots__ = ("_idle", "copies", "end", "owners", "start", "top")

    def __init__(self, start: int) -> None:
        self.start = start
        """Depth of its first block. A block in two segments belongs to the later one."""
        self.end = start
        """Blocks [start, end) are resident."""
        self.top = start
        """Blocks [start, top) are in use; [top, end) are in the free queue."""
        self.owners: dict[int, int] = {}
        """Number of block owners by the depth up to which they own the segment's blocks."""
        self.copies: list[list[Copy]] = []
        """By group of layers; only `WindowKV` uses them."""
        self._idle: list[_Idle] = []


class _Idle(BlockRun):
    """Blocks of a segment in the free queue."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment, low: int, high: int) -> None:
        super().__init__(low, high)
        self.segment = segment


Path = tuple[tuple[Segment, int], ...]
"""The segments of a sequence in order, each with the depth at which the sequence leaves it (the
last one: at which it ends)."""


def shares_blocks(path: Path, other: Path, blocks: int) -> bool:
    """Return whether the first `blocks` blocks of two paths are the same."""
    for (segment, exit_depth), (other_segment, other_exit) in zip(path, other, strict=False):
        if segment is not other_segment:
            return False
        if min(exit_depth, other_exit) >= blocks:
            return True
        if exit_depth != other_exit:
            return False
    return not blocks


class BlockOwner:
    """The blocks of one turn or of its pin: full blocks on its path, and blank ones."""

    __slots__ = ("_index", "blank", "depth", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.depth = 0
        """Number of full blocks, counted from the start of the sequence."""
        self.blank = 0
        """Number of blocks that are not full or not committed."""
        self._index = 0
        """Index into `path` of the segment with the last full block."""

    @property
    def blocks(self) -> int:
        return self.depth + self.blank


class DeviceKV:
    """All KV blocks of one engine."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = blocks
        """Number of blocks that can be allocated: blank or evictable."""
        self._blank = blocks
        self._queue = FreeQueue()

    @property
    def used(self) -> int:
        return self.blocks - self.free

    def lookup(self, path: Path, limit: int) -> tuple[int, int]:
        """Return the depth of the longest resident prefix within `limit`, and the number of its
        blocks in the free queue, by which `take_hit` lowers `free`."""
        hit = idle = 0
        for segment, exit_depth in path:
            reach = segment.end if segment.end < exit_depth else exit_depth
            if reach > limit:
                reach = limit
            if reach > hit:
                in_use = segment.top if segment.top > hit else hit
                if reach > in_use:
                    idle += reach - in_use
                hit = reach
            if reach < exit_depth:
                break
        return hit, idle

    def allocatable_before(self, path: Path, enough: int) -> int:
        """Return how many blocks can be allocated before blocks of the path's segments are evicted;
        the count ends at `enough`."""
        segments = {segment for segment, _ in path}
        blocks = self._blank
        for idle in self._queue:
            if blocks >= enough or cast(_Idle, idle).segment in segments:
                break
            blocks += idle.high - idle.low
        return blocks

    def take_hit(self, owner: BlockOwner, depth: int) -> None:
        """Give a resident prefix of `depth` blocks to an owner without blocks."""
        for index, (segment, exit_depth) in enumerate(owner.path):
            owner._index = index
            reach = depth if depth < exit_depth else exit_depth
            if reach > segment.start:
                self._retain(segment, reach)
            if depth <= exit_depth:
                break
        owner.depth = depth

    def allocate(self, owner: BlockOwner, blocks: int) -> None:
        """Allocate `blocks` blocks, at most `free`, evicting the oldest of the free queue."""
        owner.blank += blocks
        self.free -= blocks
        if blocks <= self._blank:
            self._blank -= blocks
            return
        blocks -= self._blank
        self._blank = 0
        while blocks:
            run = self._queue.oldest()
            size = run.high - run.low
            if size <= blocks:
                self._queue.remove(run)
                run.high = run.low
                blocks -= size
            else:
                run.high -= blocks
                blocks = 0
            self._evict(run)

    def _evict(self, run: BlockRun) -> None:
        """Forget blocks that are no longer in a run of the free queue."""
        idle = cast(_Idle, run)
        idle.segment.end = idle.high
        if idle.high == idle.low:
            del idle.segment._idle[0]

    def commit(self, owner: BlockOwner, depth: int) -> None:
        """Hash the owner's full blocks up to `depth`, so that other turns can hit them."""
        path = owner.path
        while owner.depth < depth:
            segment, exit_depth = path[owner._index]
            if owner.depth >= exit_depth:
                owner._index += 1
                continue
            old = owner.depth
            new = exit_depth if exit_depth < depth else depth
            owners = segment.owners
            if old > segment.start:
                others = owners.pop(old) - 1
                if others:
                    owners[old] = others
            twice = min(segment.end, new) - old
            self._retain(segment, new)
            if new > segment.end:
                segment.end = new
            if twice > 0:
                self._blank += twice
                self.free += twice
            owner.blank -= new - old
            owner.depth = new

    def release_blank(self, owner: BlockOwner) -> None:
        """Free the blank blocks, which cannot be hit and are allocated first."""
        self._blank += owner.blank
        self.free += owner.blank
        owner.blank = 0

    def release(self, owner: BlockOwner) -> None:
        """Free all blocks. The tail enters the free queue, and is evicted, before the head."""
        self.release_blank(owner)
        depth = owner.depth
        for index in range(owner._index, -1, -1):
            segment, exit_depth = owner.path[index]
            held = depth if depth < exit_depth else exit_depth
            if held > segment.start:
                self._release_segment(segment, held)
        owner.depth = owner._index = 0

    def _retain(self, segment: Segment, depth: int) -> None:
        segment.owners[depth] = segment.owners.get(depth, 0) + 1
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
            self._queue.remove(last)
            idle.pop()
        segment.top = depth

    def _release_segment(self, segment: Segment, depth: int) -> None:
        owners = segment.owners
        others = owners.pop(depth) - 1
        if others:
            owners[depth] = others
            return
        if depth < segment.top:
            return
        top = max(owners) if owners else segment.start
        idle = _Idle(segment, top, segment.top)
        self.free += segment.top - top
        segment.top = top
        segment._idle.append(idle)
        self._queue.append(idle)
