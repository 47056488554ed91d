"""Contiguous runs of blocks behave like single blocks."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.sim.kv import BlockOwner, DeviceKV, Path, Segment
from tests.sim.accounts import check_queue

Block = tuple[Segment, int]


class SingleBlocks:
    """vLLM's block pool: a reference count per block, and one LRU queue."""

    def __init__(self, blocks: int) -> None:
        self.blank = blocks
        self.references: dict[Block, int] = {}
        self.queue: OrderedDict[Block, None] = OrderedDict()

    @property
    def free(self) -> int:
        return self.blank + len(self.queue)

    def hit(self, blocks: list[Block]) -> list[Block]:
        hits = []
        for block in blocks:
            if block not in self.references:
                break
            hits.append(block)
        return hits

    def take(self, block: Block) -> None:
        self.references[block] += 1
        self.queue.pop(block, None)

    def allocate(self) -> None:
        if self.blank:
            self.blank -= 1
        else:
            block, _ = self.queue.popitem(last=False)
            del self.references[block]

    def commit(self, block: Block) -> None:
        if block in self.references:
            self.take(block)
            self.blank += 1
        else:
            self.references[block] = 1

    def release(self, blocks: list[Block], blank: int) -> None:
        self.blank += blank
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.queue[block] = None


def on_path(path: Path, depth: int) -> list[Block]:
    blocks: list[Block] = []
    for segment, leave in path:
        blocks += [(segment, i) for i in range(segment.start, min(leave, depth))]
    return blocks


def tree() -> list[Path]:
    """Return paths of five programs: four share a head, and two of these branch off a third."""
    head, a, b = Segment(0), Segment(3), Segment(3)
    branch, twig = Segment(7), Segment(9)
    return [
        ((head, 3), (a, 14)),
        ((head, 3), (b, 9)),
        ((head, 3), (a, 7), (branch, 9), (twig, 13)),
        ((head, 3), (a, 7), (branch, 12)),
        ((Segment(0), 6),),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 14), st.integers(0, 2), st.booleans()),
        max_size=40,
    )
)
def test_hits_evictions_and_free_counts_equal_those_of_single_blocks(
    moves: list[tuple[int, int, int, bool]],
) -> None:
    kv, single = DeviceKV(24), SingleBlocks(24)
    paths = tree()
    held: list[BlockOwner] = []
    for which, depth, blank, release_oldest in moves:
        path = paths[which]
        blocks = on_path(path, min(depth, path[-1][1]))
        hits = single.hit(blocks)
        hit, idle = kv.lookup(path, len(blocks))
        assert hit == len(hits)
        assert idle == sum(block in single.queue for block in hits)
        new = len(blocks) - hit + blank
        if new + idle <= kv.free:
            owner = BlockOwner(path)
            kv.take_hit(owner, hit)
            kv.allocate(owner, new)
            kv.commit(owner, len(blocks))
            for block in hits:
                single.take(block)
            for _ in range(new):
                single.allocate()
            for block in blocks[hit:]:
                single.commit(block)
            held.append(owner)
        if held and (release_oldest or new + idle > kv.free):
            owner = held.pop(0)
            single.release(on_path(owner.path, owner.depth), owner.blank)
            kv.release(owner)
        assert kv.free == single.free
        assert check_queue(kv) == len(single.queue)
        for path in paths:
            everything = on_path(path, 99)
            assert kv.lookup(path, 99)[0] == len(single.hit(everything))


def test_the_end_of_a_freed_context_is_evicted_before_its_beginning() -> None:
    kv = DeviceKV(10)
    first = ((Segment(0), 6),)
    owner = BlockOwner(first)
    kv.allocate(owner, 6)
    kv.commit(owner, 6)
    kv.release(owner)
    kv.allocate(BlockOwner(((Segment(0), 7),)), 7)  # 4 blank blocks, then 3 evicted ones
    assert kv.lookup(first, 99) == (3, 3)


def test_a_partly_filled_block_is_reused_first_and_never_hit() -> None:
    kv = DeviceKV(4)
    path = ((Segment(0), 4),)
    owner = BlockOwner(path)
    kv.allocate(owner, 4)
    kv.commit(owner, 3)
    kv.release(owner)
    kv.allocate(BlockOwner(((Segment(0), 1),)), 1)
    assert kv.lookup(path, 99) == (3, 3)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_lookup_stops_at_its_limit(limit: int) -> None:
    kv = DeviceKV(4)
    path = ((Segment(0), 2), (Segment(2), 4))
    owner = BlockOwner(path)
    kv.allocate(owner, 4)
    kv.commit(owner, 4)
    assert kv.lookup(path, limit) == (limit, 0)
