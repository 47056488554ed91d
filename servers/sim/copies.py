"""Hashed blocks of models whose layers are in several groups (`servers.sim.windows`).

vLLM keeps a copy of a block that is computed again. Of each segment of contents and each group,
there is a list of copies, oldest first, and each has any of the segment's blocks at most once. New
blocks belong to the last copy, or to another one if that has later blocks. So of two copies with a
block, the one in the list before the other has the older one.
"""

from __future__ import annotations

from servers.sim.free_queue import BlockRun, FreeQueue


class Piece(BlockRun):
    """Blocks of a copy that are next to each other and have the same number of owners. Without
    owners, they are in the free queue."""

    __slots__ = ("copy", "references")

    def __init__(self, copy: Copy, low: int, high: int, references: int) -> None:
        super().__init__(low, high)
        self.copy = copy
        self.references = references


class Copy:
    __slots__ = ("_copies", "pieces")

    def __init__(self, copies: list[Copy]) -> None:
        """`copies`: those of the segment and group, to which this one is added."""
        self._copies = copies
        self.pieces: list[Piece] = []
        """In order of their blocks."""
        copies.append(self)

    def index(self, block: int) -> int:
        """Return the index of the first piece that does not end before `block`, if there is one."""
        pieces = self.pieces
        low, high = 0, len(pieces)
        while low < high:
            middle = (low + high) // 2
            if pieces[middle].high > block:
                high = middle
            else:
                low = middle + 1
        return low

    def reach(self, index: int, most: int) -> int:
        """Return where the blocks end that follow each other from a piece on, at most `most`."""
        pieces = self.pieces
        high = pieces[index].high
        while high < most and index + 1 < len(pieces) and pieces[index + 1].low == high:
            index += 1
            high = pieces[index].high
        return min(high, most)

    def before(self, end: int) -> int:
        """Return where the last blocks before `end` end, or 0."""
        index = self.index(end - 1)
        if index < len(self.pieces) and self.pieces[index].low < end:
            return end
        return self.pieces[index - 1].high if index else 0

    def idle(self, low: int, high: int) -> int:
        """Return how many of the blocks [low, high), which are all cached, have no owner."""
        idle, index = 0, self.index(low)
        while low < high:
            piece = self.pieces[index]
            end = min(piece.high, high)
            if not piece.references:
                idle += end - low
            low = end
            index += 1
        return idle

    def add(self, low: int, high: int) -> None:
        """Add blocks after all others, with one owner."""
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last.high == low and last.references == 1:
            last.high = high
        else:
            self.pieces.append(Piece(self, low, high, 1))

    def retain(self, low: int, high: int, queue: FreeQueue) -> int:
        """Add an owner of the blocks [low, high), and return how many leave the free queue."""
        taken, index = 0, self.index(low)
        while low < high:
            piece = self.pieces[index]
            if piece.low < low:
                self._split(index, low, queue)
                index += 1
                continue
            if piece.high > high:
                self._split(index, high, queue)
            if not piece.references:
                queue.remove(piece)
                taken += piece.high - piece.low
            piece.references += 1
            low = piece.high
            index += 1
        return taken

    def release(self, low: int, high: int, queue: FreeQueue) -> int:
        """Remove an owner of the blocks [low, high), the last block first, and return how many
        enter the free queue."""
        freed, index = 0, self.index(high - 1)
        while low < high:
            if self.pieces[index].high > high:
                self._split(index, high, queue)
            if self.pieces[index].low < low:
                self._split(index, low, queue)
                index += 1
            piece = self.pieces[index]
            high = piece.low
            piece.references -= 1
            if not piece.references:
                freed += piece.high - high
                newest = queue.newest()
                if newest.low == piece.high and self._is_next(index, newest):
                    newest.low = high
                    del self.pieces[index]
                else:
                    queue.append(piece)
            index -= 1
        return freed

    def _is_next(self, index: int, run: BlockRun) -> bool:
        return index + 1 < len(self.pieces) and self.pieces[index + 1] is run

    def _split(self, index: int, at: int, queue: FreeQueue) -> None:
        piece = self.pieces[index]
        rest = Piece(self, at, piece.high, piece.references)
        piece.high = at
        self.pieces.insert(index + 1, rest)
        if not piece.references:
            queue.insert(rest, piece)

    def remove(self, piece: Piece) -> None:
        """Remove a piece all of whose blocks were evicted."""
        del self.pieces[self.index(piece.low) - 1]
        if not self.pieces:
            self._copies.remove(self)
