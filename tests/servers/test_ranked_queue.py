"""`servers.policies.ranked_queue`: the smallest rank first, whatever changed rank or left."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from servers.policies.ranked_queue import MIN_COMPACTED, RankedQueue

KEYS, RANKS = st.integers(0, 30), st.integers(0, 9)
CHANGES = st.sampled_from(["remove", "skip", "skip", "skip", "end skips"]) | RANKS


@given(st.lists(st.tuples(KEYS, CHANGES), max_size=400))
def test_the_head_has_the_smallest_rank_of_those_not_skipped_after_any_changes(
    changes: list[tuple[int, int | str]],
) -> None:
    queue, ranks, skipped = RankedQueue[int](), dict[int, int](), set[int]()
    for key, change in changes:
        if isinstance(change, int):
            queue.push(key, (change, key), key)
            ranks[key] = change
        elif change == "remove":
            queue.remove(key)
            ranks.pop(key, None)
            skipped.discard(key)
        elif change == "end skips":
            queue.end_skips()
            skipped.clear()
        elif len(queue):
            skipped.add(queue.peek())
            queue.skip(queue.peek())
        assert queue.items() == list(ranks)
        assert queue.of(range(0, 40, 2)) == [key for key in range(0, 40, 2) if key in ranks]
        heads = [key for key in ranks if key not in skipped]
        assert len(queue) == len(heads)
        if heads:
            assert queue.peek() == min(heads, key=lambda key: (ranks[key], key))


def test_items_that_change_rank_again_and_again_take_no_more_memory() -> None:
    """Only the smallest rank is ever taken from the heap, so entries of worse ones would stay."""
    queue = RankedQueue[int]()
    for rank in range(1000):
        for key in range(100):
            queue.push(key, (rank if key else -1, key), key)
        assert len(queue._heap) <= max(2 * 100, MIN_COMPACTED) + 1
