"""The points for which no other point is smaller in both coordinates. Standard library only."""

from __future__ import annotations

import math
from bisect import bisect_left

MOST_IN_BLOCK = 64
Position = tuple[float, int]
"""The first coordinate, and the key, so that no two are equal."""


class Staircase:
    """Points by key. They are kept in blocks, sorted by position, so that a search for `steps`
    passes over most of them."""

    def __init__(self) -> None:
        self._positions: dict[int, Position] = {}
        self._blocks = [_Block([], [])]
        self._lasts: list[Position] = []
        """The last position in each block but the last one."""
        self._steps: list[int] | None = []
        """None if they have to be searched again."""
        self._lowest = math.inf
        """The second coordinate of the last step."""

    def __contains__(self, key: int) -> bool:
        return key in self._positions

    def add(self, key: int, x: float, y: float) -> None:
        position = self._positions[key] = x, key
        index = bisect_left(self._lasts, position)
        block = self._blocks[index]
        block.insert(position, y)
        if len(block.ys) > MOST_IN_BLOCK:
            half = MOST_IN_BLOCK // 2
            first = _Block(block.positions[:half], block.ys[:half])
            second = _Block(block.positions[half:], block.ys[half:])
            self._blocks[index : index + 1] = [first, second]
            self._lasts.insert(index, first.positions[-1])
        if not self._steps or y < self._lowest or position < self._positions[self._steps[-1]]:
            self._steps = None

    def remove(self, key: int) -> None:
        """Remove a point. Unknown keys are ignored."""
        position = self._positions.pop(key, None)
        if position is None:
            return
        index = bisect_left(self._lasts, position)
        self._blocks[index].remove(position)
        if not self._blocks[index].ys and self._lasts:
            del self._blocks[index], self._lasts[min(index, len(self._lasts) - 1)]
        if self._steps is not None and key in self._steps:
            self._steps = None

    def first(self) -> float:
        """Return the smallest first coordinate; raise IndexError if there is no point."""
        return self._blocks[0].positions[0][0]

    def steps(self) -> list[int]:
        """Return the points before which, by position, all others have a larger second coordinate,
        in order of position. The last one has the smallest second coordinate."""
        if self._steps is None:
            self._steps, low = [], math.inf
            for block in self._blocks:
                if block.low < low:
                    for index, y in enumerate(block.ys):
                        if y < low:
                            self._steps.append(block.positions[index][1])
                            low = y
            self._lowest = low
        return self._steps


class _Block:
    __slots__ = ("low", "positions", "ys")

    def __init__(self, positions: list[Position], ys: list[float]) -> None:
        self.positions = positions
        self.ys = ys
        """Second coordinates."""
        self.low = min(ys, default=math.inf)

    def insert(self, position: Position, y: float) -> None:
        index = bisect_left(self.positions, position)
        self.positions.insert(index, position)
        self.ys.insert(index, y)
        self.low = min(self.low, y)

    def remove(self, position: Position) -> None:
        index = bisect_left(self.positions, position)
        del self.positions[index]
        y = self.ys.pop(index)
        if y == self.low:
            self.low = min(self.ys, default=math.inf)
