"""The points of which no other one is smaller in both coordinates. Standard library only."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

MOST_IN_BLOCK = 128
Position = tuple[float, int]
"""The first coordinate, and the key, so that no two are equal."""


class Staircase:
    """Points by key. Points are kept in blocks, sorted by position, with the smallest second
    coordinate of each, so that a search for `steps` passes over most blocks."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}
        self._blocks: list[list[Position]] = [[]]
        self._lows: list[float] = [math.inf]
        """The smallest second coordinate in each block."""
        self._steps: list[int] | None = []
        """None if they have to be searched again."""

    def __contains__(self, key: int) -> bool:
        return key in self._points

    def add(self, key: int, x: float, y: float) -> None:
        self._points[key] = x, y
        index = self._block_at((x, key))
        block = self._blocks[index]
        insort(block, (x, key))
        self._lows[index] = min(self._lows[index], y)
        if len(block) > MOST_IN_BLOCK:
            half = len(block) // 2
            self._blocks[index : index + 1] = [block[:half], block[half:]]
            self._lows[index : index + 1] = [self._low(block[:half]), self._low(block[half:])]
        if self._steps:
            last_x, last_y = self._points[self._steps[-1]]
            if (last_x, self._steps[-1]) < (x, key) and last_y <= y:
                return
        self._steps = None

    def remove(self, key: int) -> None:
        """Remove a point. Unknown keys are ignored."""
        if key not in self._points:
            return
        x, y = self._points[key]
        index = self._block_at((x, key))
        block = self._blocks[index]
        del block[bisect_left(block, (x, key))]
        del self._points[key]
        if not block and len(self._blocks) > 1:
            del self._blocks[index], self._lows[index]
        elif y == self._lows[index]:
            self._lows[index] = self._low(block)
        if self._steps is not None and key in self._steps:
            self._steps = None

    def first(self) -> float:
        """Return the smallest first coordinate; raise IndexError if there is no point."""
        return self._blocks[0][0][0]

    def steps(self) -> list[int]:
        """Return the points before which, by position, all others have a larger second coordinate,
        in order of position. The last one has the smallest second coordinate."""
        if self._steps is None:
            self._steps, low = [], math.inf
            for block, block_low in zip(self._blocks, self._lows, strict=True):
                if block_low >= low:
                    continue
                for _, key in block:
                    if self._points[key][1] < low:
                        self._steps.append(key)
                        low = self._points[key][1]
        return self._steps

    def _block_at(self, position: Position) -> int:
        """Return the block that has the position, or to which it belongs."""
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle][-1] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def _low(self, block: list[Position]) -> float:
        return min([self._points[key][1] for _, key in block], default=math.inf)
