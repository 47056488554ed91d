"""A priority queue whose items can change rank while they wait. Standard library only."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable
from typing import Generic, TypeVar

from servers.policies.base import Rank

Item = TypeVar("Item")


MIN_COMPACTED = 64
"""A heap that has fewer entries is not rebuilt."""


class RankedQueue(Generic[Item]):
    """Items by rank, smallest first. Push and re-rank are O(log n); deletion is lazy: there are
    entries that are out of date, at most about as many as others."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int]] = []
        self._live: dict[int, tuple[Rank, Item]] = {}
        self._passed: list[tuple[Rank, int]] = []
        """Entries before those of the heap, in order: those that were skipped once. They are not
        put back, so that an item that is skipped again and again costs O(1) each time."""
        self._next = 0
        """The first of them that may be neither out of date nor skipped."""
        self.skipped: set[int] = set()

    def __len__(self) -> int:
        """The number of items that are not skipped."""
        return len(self._live) - len(self.skipped)

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
            entry = (rank, key)
            if self._passed and entry < self._passed[-1]:
                index = bisect_left(self._passed, entry)
                self._passed.insert(index, entry)
                self._next = min(self._next, index)
            else:
                heapq.heappush(self._heap, entry)
            if len(self._heap) + len(self._passed) > max(2 * len(self._live), MIN_COMPACTED):
                self._heap = [(live_rank, key) for key, (live_rank, _) in self._live.items()]
                heapq.heapify(self._heap)
                self._passed, self._next = [], 0

    def peek(self) -> Item:
        """Return the item of smallest rank that is not skipped; raise IndexError if there is
        none."""
        passed = self._passed
        while self._next < len(passed):
            rank, key = passed[self._next]
            live = self._live.get(key)
            if live is None or live[0] != rank:
                del passed[self._next]
            elif key in self.skipped:
                self._next += 1
            else:
                return live[1]
        while True:
            rank, key = self._heap[0]
            live = self._live.get(key)
            if live is not None and live[0] == rank:
                if key not in self.skipped:
                    return live[1]
                passed.append((rank, key))
                self._next += 1
            heapq.heappop(self._heap)

    def skip(self, key: int) -> None:
        """Leave a queued item out until `end_skips`."""
        self.skipped.add(key)

    def end_skips(self) -> None:
        self.skipped.clear()
        self._next = 0

    def remove(self, key: int) -> None:
        """Remove an item. Unknown keys are ignored."""
        self._live.pop(key, None)
        self.skipped.discard(key)
