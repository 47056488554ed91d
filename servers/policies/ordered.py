"""Items in the order of places that rarely change. Standard library only."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Generic, TypeVar

Item = TypeVar("Item")
Place = tuple[float, ...]
"""Numbers that sort ascending. Of equal places, the item that was put first comes first."""


class Ordered(Generic[Item]):
    """Items by id. Each change takes O(log n) and the copy of a part of a list."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Place, int, Item]] = {}
        self._order: list[tuple[Place, int, str]] = []
        self._puts = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def items(self) -> list[tuple[str, Item]]:
        """Return ids and items in order."""
        entries = self._entries
        return [(item_id, entries[item_id][2]) for _, _, item_id in self._order]

    def put(self, item_id: str, item: Item, place: Place) -> None:
        """Add an item, or move it to another place."""
        entry = self._entries.get(item_id)
        if entry is None:
            self._puts += 1
            number = self._puts
        else:
            old, number, _ = entry
            if old == place:
                return
            del self._order[bisect_left(self._order, (old, number, item_id))]
        self._entries[item_id] = place, number, item
        insort(self._order, (place, number, item_id))

    def pop(self, item_id: str) -> Item | None:
        """Take an item out; return None if it is not there."""
        entry = self._entries.pop(item_id, None)
        if entry is None:
            return None
        place, number, item = entry
        del self._order[bisect_left(self._order, (place, number, item_id))]
        return item
