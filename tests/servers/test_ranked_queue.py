"""`servers.policies.ranked_queue`: the smallest rank first, whatever changed rank or left."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from servers.policies.ranked_queue import MIN_COMPACTED, RankedQueue

KEYS, RANKS = st.integers(0, 30), st.integers(0, 9)


@given(st.lists(st.tuples(KEYS, st.none() | RANKS), max_size=400))
def test_the_head_has_the_smallest_rank_after_any_pushes_and_removals(
    changes: list[tuple[int, int | None]],
) -> None:
    queue, ranks = RankedQueue[int](), dict[int, int]()
    for key, rank in changes:
        if rank is None:
            queue.remove(key)
            ranks.pop(key, None)
        else:
            queue.push(key, (rank, key), key)
            ranks[key] = rank
        assert queue.items() == list(ranks)
        assert queue.of(range(0, 40, 2)) == [key for key in range(0, 40, 2) if key in ranks]
        if ranks:
            assert queue.peek() == min(ranks, key=lambda key: (ranks[key], key))


def test_items_that_change_rank_again_and_again_take_no_more_memory() -> None:
    """Only the smallest rank is ever taken from the heap, so entries of worse ones would stay."""
    queue = RankedQueue[int]()
    for rank in range(1000):
        for key in range(100):
            queue.push(key, (rank if key else -1, key), key)
        assert len(queue._heap) <= max(2 * 100, MIN_COMPACTED) + 1
