"""Offload tiers: what is stored, what is evicted first, and how long a read takes.

A block has 1 kB and the link 1 MB/s, so that one block is read in a millisecond. Chunks have four
blocks.
"""

from __future__ import annotations

from servers.sim.kv import Path, Segment
from servers.sim.tiers import Tier

MS = 1_000_000_000
"""Picoseconds per millisecond."""


def tier(blocks: int) -> Tier:
    return Tier("dram", blocks, chunk_blocks=4, bytes_per_block=1000, bytes_per_s=1e6)


def context(blocks: int = 99) -> Path:
    return ((Segment(0), blocks),)


def stored(tier: Tier, *contexts: Path) -> list[int]:
    return [tier.lookup(context, 99) for context in contexts]


def test_only_whole_chunks_are_stored_and_take_memory() -> None:
    dram, first, second = tier(8), context(), context()
    dram.store(first, 7)
    assert dram.used == 4
    dram.store(second, 6)
    assert dram.used == 8
    assert stored(dram, first, second) == [4, 4]


def test_less_than_a_chunk_is_not_stored() -> None:
    dram, short = tier(8), context()
    dram.store(short, 3)
    assert (dram.used, stored(dram, short)) == (0, [0])


def test_a_hit_ends_with_a_whole_chunk() -> None:
    dram, whole = tier(8), context()
    dram.store(whole, 8)
    assert [dram.lookup(whole, limit) for limit in (3, 4, 7, 8, 9)] == [0, 4, 4, 8, 8]


def test_the_context_that_was_stored_least_recently_is_evicted() -> None:
    dram, oldest, newer, newest = tier(8), context(), context(), context()
    for stores in (oldest, newer, newest):
        dram.store(stores, 4)
    assert stored(dram, oldest, newer, newest) == [0, 4, 4]
    assert dram.used == 8


def test_a_context_that_is_read_or_stored_again_is_the_most_recently_used() -> None:
    dram, read, again, idle, newest = tier(12), context(), context(), context(), context()
    for stores in (read, again, idle):
        dram.store(stores, 4)
    dram.touch(read, 4)
    dram.store(again, 4)
    dram.store(newest, 4)
    assert stored(dram, read, again, idle, newest) == [4, 4, 0, 4]


def test_the_tail_of_a_context_is_evicted_before_its_head() -> None:
    dram, long, short = tier(12), context(), context()
    dram.store(long, 12)
    dram.store(short, 4)
    assert stored(dram, long, short) == [8, 4]


def test_the_tail_that_branches_off_is_evicted_before_the_head_that_others_share() -> None:
    head = Segment(0)
    left: Path = ((head, 4), (Segment(4), 8))
    right: Path = ((head, 4), (Segment(4), 8))
    dram = tier(12)
    dram.store(left, 8)
    dram.store(right, 8)
    assert (dram.used, stored(dram, left, right)) == (12, [8, 8])
    dram.store(context(), 4)
    assert stored(dram, left, right) == [4, 8]


def test_a_prefix_with_a_gap_hits_only_up_to_the_gap() -> None:
    head, tail = Segment(0), Segment(4)
    dram = tier(8)
    dram.store(((head, 4), (tail, 8)), 8)
    dram.store(context(), 4)  # evicts the tail
    dram.touch(((head, 4),), 4)
    assert stored(dram, ((head, 4), (tail, 8))) == [4]


def test_reads_at_the_same_time_queue_behind_each_other_on_the_link() -> None:
    dram = tier(8)
    assert dram.link.read(4, 0) == 4 * MS
    assert dram.link.read(4, 1 * MS) == 8 * MS
    assert dram.link.read(2, 8 * MS) == 10 * MS


def test_a_read_on_an_idle_link_starts_at_once() -> None:
    dram = tier(8)
    dram.link.read(4, 0)
    assert dram.link.read(4, 100 * MS) == 104 * MS
