"""A priority queue whose items can change rank while they wait. Standard library only."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Generic, TypeVar

from servers.policies.base import Rank

Item = TypeVar("Item")


MIN_COMPACTED = 64
"""A heap that has fewer entries is not rebuilt."""


class RankedQueue(Generic[Item]):
    """Items by rank, smallest first. Push and re-rank are O(log n); deletion is lazy: the heap has
    entries that are out of date, at most about as many as others."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int]] = []
        self._live: dict[int, tuple[Rank, Item]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: int) -> bool:
        return key in self._live

    def items(self) -> list[Item]:
        """Return the items in order of first push, not of rank."""
        return [item for _, item in self._live.values()]

    def of(self, keys: Iterable[int]) -> list[Item]:
        """Return the items of those keys that are queued."""
        return [self._live[key][1] for key in keys if key in self._live]

    def push(self, key: int, rank: Rank, item: Item) -> None:
        """Add an item, or give it a new rank if its key is queued already."""
        live = self._live.get(key)
        if live is None or live[0] != rank:
            self._live[key] = (rank, item)
            heapq.heappush(self._heap, (rank, key))
            if len(self._heap) > max(2 * len(self._live), MIN_COMPACTED):
                self._heap = [(live_rank, key) for key, (live_rank, _) in self._live.items()]
                heapq.heapify(self._heap)

    def peek(self) -> Item:
        """Return the item of smallest rank; raise IndexError if the queue is empty."""
        while True:
            rank, key = self._heap[0]
            live = self._live.get(key)
            if live is not None and live[0] == rank:
                return live[1]
            heapq.heappop(self._heap)

    def remove(self, key: int) -> None:
        """Remove an item. Unknown keys are ignored."""
        self._live.pop(key, None)
