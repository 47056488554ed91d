"""Items of different sizes in the order of places that rarely change. Standard library only."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")
Place = tuple[float, ...]
"""Numbers that sort ascending. Of equal places, the item that was put first comes first."""
MOST_IN_BLOCK = 64


class Entry(NamedTuple, Generic[Key, Item]):
    place: Place
    number: int
    """Of the put; no two are equal."""
    size: float
    key: Key
    item: Item


class Ordered(Generic[Key, Item]):
    """Items by key, in sorted blocks, so that a search for small ones passes over most of them. A
    change of n items takes O(log n) and the copy of a block."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry[Key, Item]] = {}
        self._blocks: list[_Block[Key, Item]] = [_Block([])]
        self._lasts: list[Entry[Key, Item]] = []
        """The last entry of each block but the last one."""
        self._puts = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def put(self, key: Key, item: Item, place: Place, size: float) -> Entry[Key, Item]:
        """Add an item, or move it to another place or give it another size."""
        before = self._entries.get(key)
        if before is None:
            self._puts += 1
            number = self._puts
        else:
            if before.place == place and before.size == size and before.item is item:
                return before
            number = before.number
            self._remove(before)
        entry = self._entries[key] = Entry(place, number, size, key, item)
        index = bisect_left(self._lasts, entry)
        block = self._blocks[index]
        block.insert(entry)
        if len(block.entries) > MOST_IN_BLOCK:
            half = MOST_IN_BLOCK // 2
            first, second = _Block(block.entries[:half]), _Block(block.entries[half:])
            self._blocks[index : index + 1] = [first, second]
            self._lasts.insert(index, first.entries[-1])
        return entry

    def pop(self, key: Key) -> Entry[Key, Item] | None:
        """Take an item out; return None if it is not there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._remove(entry)
        return entry

    def next_within(
        self, most: float, after: Entry[Key, Item] | None = None
    ) -> Entry[Key, Item] | None:
        """Return the first item of at most this size, or the first one behind an entry, which may
        have been taken out since. O(log n) and one comparison for each block that is passed."""
        index = start = 0
        if after is not None:
            index = bisect_left(self._lasts, after)
            start = bisect_right(self._blocks[index].entries, after)
        for block in self._blocks[index:]:
            if block.least <= most:
                for entry in block.entries[start:]:
                    if entry.size <= most:
                        return entry
            start = 0
        return None

    def _remove(self, entry: Entry[Key, Item]) -> None:
        index = bisect_left(self._lasts, entry)
        block = self._blocks[index]
        block.remove(entry)
        if not block.entries and self._lasts:
            del self._blocks[index], self._lasts[min(index, len(self._lasts) - 1)]


class _Block(Generic[Key, Item]):
    __slots__ = ("entries", "least")

    def __init__(self, entries: list[Entry[Key, Item]]) -> None:
        self.entries = entries
        self.least = min([entry.size for entry in entries], default=math.inf)
        """The smallest size."""

    def insert(self, entry: Entry[Key, Item]) -> None:
        self.entries.insert(bisect_left(self.entries, entry), entry)
        self.least = min(self.least, entry.size)

    def remove(self, entry: Entry[Key, Item]) -> None:
        del self.entries[bisect_left(self.entries, entry)]
        if entry.size == self.least:
            self.least = min([entry.size for entry in self.entries], default=math.inf)
