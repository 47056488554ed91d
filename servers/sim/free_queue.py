"""The queue of cached blocks that nobody uses, in runs of blocks that are next to each other."""

from __future__ import annotations

from collections.abc import Iterator


class BlockRun:
    """Blocks [low, high), which are evicted from the high end."""

    __slots__ = ("high", "low", "newer", "older")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.older: BlockRun = self
        self.newer: BlockRun = self


class FreeQueue:
    """Runs of idle blocks, oldest first: a linked list, as in vLLM, since most leave it from the
    middle."""

    def __init__(self) -> None:
        self._ends = BlockRun(0, 0)
        """Closes the list to a ring: it is newer than the newest and older than the oldest."""

    def __iter__(self) -> Iterator[BlockRun]:
        run = self._ends.newer
        while run is not self._ends:
            yield run
            run = run.newer

    def oldest(self) -> BlockRun:
        """Return the run that is evicted first; there must be one."""
        return self._ends.newer

    def newest(self) -> BlockRun:
        """Return the run that is evicted last, or one without blocks."""
        return self._ends.older

    def append(self, run: BlockRun) -> None:
        self.insert(run, self._ends)

    def insert(self, run: BlockRun, newer: BlockRun) -> None:
        """Insert a run that is evicted before `newer`."""
        older = newer.older
        run.older, run.newer = older, newer
        older.newer = newer.older = run

    def remove(self, run: BlockRun) -> None:
        run.older.newer, run.newer.older = run.newer, run.older
