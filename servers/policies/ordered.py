"""Items in the order of places that rarely change. Standard library only."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Generic, TypeVar

Item = TypeVar("Item")
Place = tuple[float, ...]
"""Numbers that sort ascending. Of equal places, the item that was put first comes first."""


Entry = tuple[Place, int, str, Item]
"""Place, number of the put, id and item. No two numbers are equal."""


class Ordered(Generic[Item]):
    """Items by id. Each change takes O(log n) and the copy of a part of a list."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry[Item]] = {}
        self._order: list[Entry[Item]] = []
        self._puts = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def entries(self) -> list[Entry[Item]]:
        """Return a copy of the list in order. New tuples would trigger the garbage collector."""
        return self._order[:]

    def put(self, item_id: str, item: Item, place: Place) -> None:
        """Add an item, or move it to another place."""
        entry = self._entries.get(item_id)
        if entry is None:
            self._puts += 1
            number = self._puts
        else:
            if entry[0] == place and entry[3] is item:
                return
            number = entry[1]
            del self._order[bisect_left(self._order, entry)]
        self._entries[item_id] = entry = place, number, item_id, item
        insort(self._order, entry)

    def pop(self, item_id: str) -> Item | None:
        """Take an item out; return None if it is not there."""
        entry = self._entries.pop(item_id, None)
        if entry is None:
            return None
        del self._order[bisect_left(self._order, entry)]
        return entry[3]
