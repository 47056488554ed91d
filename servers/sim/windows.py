"""Paged KV of a model with sliding-window layers, as in vLLM v1's hybrid KV cache manager.

vLLM splits the layers into groups with pages of equal size. Each group has a block table per turn,
and all groups take blocks from one pool. Here one group has full attention and the others have one
sliding window in common. As in vLLM 0.32:

- Blocks before the window are freed when the turn gets its next slot.
- A prefix hit needs the full-attention blocks from the start of the sequence, and the blocks of all
  window groups for the last window before the end of the hit only.
- Of the window blocks, only those are hashed from which a later turn can resume: the last window
  before the end of the prompt, and before the end of the longest hit of the full-attention group
  (`prefix_cache_retention_interval` 0, vLLM's default).

Because of the last rule, the next turn of a program computes its previous answer again, although
the full-attention group still has it. vLLM then keeps two copies of these blocks. So here, unlike
in `DeviceKV`, blocks of a segment are in a list of copies for each group (`servers.sim.copies`). A
hit takes the oldest copy of each block.

Blocks of full attention may be longer than those of the other groups, or shorter. Blocks are then
hashed, and hits end, at multiples of the longer ones. Depths are in blocks of `block_tokens`
tokens, the length of the shorter ones, and positions in the blocks of a group's table. A longer
block belongs to the segment in which it ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from servers.profiles.kv_memory import EVEN, Lengths
from servers.sim.copies import Copy, Piece
from servers.sim.free_queue import BlockRun
from servers.sim.kv import BlockOwner, DeviceKV, Path, Segment

_NO_WINDOW: Final = 1 << 60


class Held:
    """Blocks of a copy at the positions [low, high) of a block table."""

    __slots__ = ("copy", "high", "low")

    def __init__(self, copy: Copy, low: int, high: int) -> None:
        self.copy = copy
        self.low = low
        self.high = high


class WindowOwner(BlockOwner):
    """The block tables of one turn, or the blocks of its pin. `depth` counts the hashed blocks of
    the full-attention group, and `blank` the blocks without a hash of all groups."""

    __slots__ = ("boundary", "changes_tick", "hash_tokens", "hashed", "held", "high", "low")

    def __init__(self, path: Path, groups: int) -> None:
        super().__init__(path)
        self.held: list[list[Held]] = [[] for _ in range(groups)]
        """The hashed blocks of each group in order. All window groups have the same positions."""
        self.low = 0
        """Positions before this one have left the window and have no block."""
        self.high = 0
        """Depth of the tables."""
        self.hashed = 0
        """Positions of the window groups before this one were hashed or will never be."""
        self.boundary = 0
        """Depth of the full-attention group's hit if it is longer than the turn's hit, else 0."""
        self.changes_tick = 0
        """The tick at which a decode next frees, needs or hashes blocks, or an earlier one."""
        self.hash_tokens = 0
        """Tokens with which a decode hashes blocks of the prompt, or 0."""

    @property
    def blocks(self) -> int:
        return self.blank + sum([part.high - part.low for held in self.held for part in held])


class Hit(NamedTuple):
    depth: int
    idle: int
    """Number of the hit's blocks in the free queue."""


class WindowKV(DeviceKV):
    """All KV blocks of one engine."""

    def __init__(
        self,
        blocks: int,
        windows: tuple[int | None, ...],
        block_tokens: int,
        lengths: Lengths = EVEN,
    ) -> None:
        """`windows`: of each group in vLLM's order, in tokens; exactly one is None, and the others,
        if there are any, are equal. `lengths`: as in `KvMemory.block_lengths`."""
        super().__init__(blocks)
        self.groups = len(windows)
        self._full = windows.index(None)
        self._local = [group for group in range(self.groups) if group != self._full]
        self.window = next((window for window in windows if window is not None), _NO_WINDOW)
        self._block = block_tokens
        self._full_length, self._length = lengths
        self._aligned = max(lengths)
        self.window_tokens = self._length * block_tokens
        """Tokens of a window block."""
        self._hit_blocks = -(-(self.window - 1) // self.window_tokens)
        """Number of window blocks that a hit needs."""

    def owner(self, path: Path) -> WindowOwner:
        return WindowOwner(path, self.groups)

    def passed(self, tokens: int) -> int:
        """Return the number of blocks before the window of the token after `tokens` tokens."""
        return max(0, tokens - self.window + 1) // self.window_tokens

    def grown(self, low: int, high: int, most: int = _NO_WINDOW) -> int:
        """Return by how many blocks the tables of all groups grow from depth `low` to `high`. A
        window group has at most `most` blocks."""
        full = -(-high // self._full_length) - -(-low // self._full_length)
        windows = min(-(-high // self._length), most) - -(-low // self._length)
        return full + (self.groups - 1) * max(0, windows)

    def next_leave(self, tokens: int) -> int:
        """Return the smallest number of computed tokens, at least `tokens`, at which a block is
        before the window for the first time."""
        first = self.window - 1 + self.window_tokens
        return first if tokens <= first else tokens + (first - tokens) % self.window_tokens

    # Hits ---------------------------------------------------------------------------------------

    def find(self, owner: WindowOwner, limit: int) -> Hit:
        """Return the longest hit of an owner without blocks, of at most `limit` blocks."""
        length = self._full_length
        full = self._oldest(owner.path, self._full, 0, limit // length)
        longest = full[-1].high * length // self._aligned * self._aligned if full else 0
        depth = self._window_hit(owner.path, longest)
        owner.boundary = longest if longest > depth else 0
        idle = idle_blocks(full, depth // length)
        low, high = self.passed(depth * self._block), depth // self._length
        for group in self._local:
            idle += idle_blocks(self._oldest(owner.path, group, low, high), high)
        return Hit(depth, idle)

    def _oldest(self, path: Path, group: int, low: int, high: int) -> list[Held]:
        """Return the oldest copies of a group's blocks [low, high), up to the first missing one."""
        found: list[Held] = []
        for segment, _, end in reversed(self._parts(path, group, low, high)):
            copies, first = segment.copies[group] if segment.copies else [], 0
            while low < end:
                reach, number = end, first
                while number < len(copies):
                    copy = copies[number]
                    index = copy.index(low)
                    if index == len(copy.pieces):
                        first += number == first
                    elif copy.pieces[index].low > low:
                        reach = min(reach, copy.pieces[index].low)
                    else:
                        reach = copy.reach(index, reach)
                        found.append(Held(copy, low, reach))
                        low = reach
                        break
                    number += 1
                else:
                    return found
        return found

    def _parts(self, path: Path, group: int, low: int, high: int) -> list[tuple[Segment, int, int]]:
        """Return the segments that have a group's blocks [low, high), and which, the last first."""
        length = self._full_length if group == self._full else self._length
        parts: list[tuple[Segment, int, int]] = []
        for index in range(len(path) - 1, -1, -1):
            segment, exit_depth = path[index]
            begin = max(low, path[index - 1][1] // length) if index else low
            end = min(high, exit_depth // length)
            if begin < end:
                parts.append((segment, begin, end))
            if begin <= low:
                break
        return parts

    def _reach(self, path: Path, group: int, low: int, high: int) -> int:
        """Return the position of the first missing block of [low, high), or `high`."""
        found = self._oldest(path, group, low, high)
        return found[-1].high if found else low

    def _window_hit(self, path: Path, longest: int) -> int:
        """Return the largest depth, at most `longest`, before which the window is cached."""
        depth = longest
        while depth:
            end = depth // self._length
            low = max(0, end - self._hit_blocks)
            for group in self._local:
                reach = self._reach(path, group, low, end)
                if reach < end:
                    reach = reach if reach > low else self._last_cached(path, group, low)
                    depth = reach * self._length // self._aligned * self._aligned
                    break
            else:
                break
        return depth

    def _last_cached(self, path: Path, group: int, end: int) -> int:
        """Return where the last cached blocks before a position end, or 0."""
        for segment, _, stop in self._parts(path, group, 0, end):
            copies = segment.copies[group] if segment.copies else []
            if copies and (last := max([copy.before(stop) for copy in copies])):
                return last
        return 0

    def take_hit(self, owner: BlockOwner, depth: int) -> None:
        """Give a hit of `depth` blocks to an owner without blocks."""
        owner = cast(WindowOwner, owner)
        owner.low = self.passed(depth * self._block)
        owner.high, owner.hashed, owner.depth = depth, depth // self._length, depth
        self._take(owner, self._full, 0, depth // self._full_length)
        for group in self._local:
            self._take(owner, group, owner.low, owner.hashed)

    def _take(self, owner: WindowOwner, group: int, low: int, high: int) -> None:
        """Take the oldest copies of blocks [low, high) of a group, which are cached."""
        held = owner.held[group]
        for part in self._oldest(owner.path, group, low, high):
            self.free -= part.copy.retain(part.low, part.high, self._queue)
            held.append(part)

    # Slots --------------------------------------------------------------------------------------

    def leave_window(self, owner: WindowOwner, computed: int) -> None:
        """Free the blocks before the window of a turn that has computed `computed` tokens."""
        low = min(self.passed(computed), -(-owner.high // self._length))
        if low <= owner.low:
            return
        hashed = 0
        if (held := owner.held[self._local[0]]) and held[0].low < low:
            for group in self._local:
                hashed = self._leave(owner.held[group], low)
        blank = (self.groups - 1) * self._unhashed_before(owner, low, low - owner.low - hashed)
        owner.low = low
        owner.blank -= blank
        self._blank += blank
        self.free += blank

    def _leave(self, held: list[Held], low: int) -> int:
        """Free the blocks before a position, the last one first, and return their number."""
        count = left = 0
        while left < len(held) and held[left].low < low:
            left += 1
        for index in range(left - 1, -1, -1):
            part = held[index]
            high = min(part.high, low)
            self.free += part.copy.release(part.low, high, self._queue)
            count += high - part.low
            part.low = high
        while held and held[0].low == held[0].high:
            del held[0]
        return count

    def _unhashed_before(self, owner: WindowOwner, low: int, passed: int) -> int:
        """Return how many positions before `low` have blocks without a hash, of `passed` ones that
        have left the window and have no hash."""
        return passed

    def extend(self, owner: WindowOwner, tokens: int) -> None:
        """Allocate blocks of all groups for a context of `tokens` tokens."""
        high = -(-tokens // self._block)
        if high > owner.high:
            self.allocate(owner, self.grown(owner.high, high))
            owner.high = high

    def _evict(self, run: BlockRun) -> None:
        if run.low == run.high:
            piece = cast(Piece, run)
            piece.copy.remove(piece)

    def hash_full(self, owner: WindowOwner, tokens: int) -> None:
        """Hash the full-attention blocks of `tokens` computed tokens."""
        depth, length = self._hashed_depth(tokens), self._full_length
        if depth > owner.depth:
            self._hash(owner, self._full, owner.depth // length, depth // length)
            owner.depth = depth

    def hash_later(self, owner: WindowOwner, prompt_tokens: int) -> None:
        """Let decodes hash full blocks of the prompt in the step that fills the longer block around
        them. Other turns may share these, unlike blocks of an answer, which are hashed at its end.
        """
        shared = prompt_tokens // self._block >= owner.depth + self._full_length
        owner.hash_tokens = (owner.depth + self._aligned) * self._block if shared else 0

    def hash_decode(self, owner: WindowOwner, tokens: int) -> None:
        if tokens == owner.hash_tokens:
            self.hash_full(owner, tokens)

    def _hashed_depth(self, tokens: int) -> int:
        """Return the depth up to which blocks of `tokens` computed tokens are hashed."""
        return tokens // (self._block * self._aligned) * self._aligned

    def hash_windows(self, owner: WindowOwner, tokens: int, prompt_tokens: int) -> None:
        """Hash the window blocks of `tokens` computed tokens from which a turn can resume."""
        end = self._hashed_depth(tokens) // self._length
        if end <= owner.hashed:
            return
        for depth in sorted((self._hashed_depth(prompt_tokens - 1), owner.boundary)):
            boundary = depth // self._length
            low, high = max(owner.hashed, boundary - self._hit_blocks), min(end, boundary)
            if low < high:
                self._hash_local(owner, low, high)
                owner.hashed = high
        owner.hashed = end

    def _hash_local(self, owner: WindowOwner, low: int, high: int) -> None:
        for group in self._local:
            self._hash(owner, group, low, high)

    def _hash(self, owner: WindowOwner, group: int, low: int, high: int) -> None:
        """Hash blank blocks at the positions [low, high) of a group's table."""
        owner.blank -= high - low
        held = owner.held[group]
        for segment, begin, end in reversed(self._parts(owner.path, group, low, high)):
            if not segment.copies:
                segment.copies = [[] for _ in range(self.groups)]
            copies = segment.copies[group]
            if not copies or copies[-1].pieces[-1].high > begin:
                Copy(copies)
            copies[-1].add(begin, end)
            if held and held[-1].copy is copies[-1] and held[-1].high == begin:
                held[-1].high = end
            else:
                held.append(Held(copies[-1], begin, end))

    # Ends ---------------------------------------------------------------------------------------

    def take_left(self, owner: WindowOwner, prompt_tokens: int) -> None:
        """Take those blocks again that have left the window and that the next turn's hit needs: the
        last window before the end of the prompt, unless they were evicted."""
        boundary = self._hashed_depth(prompt_tokens - 1) // self._length
        low, high = max(0, boundary - self._hit_blocks), min(boundary, owner.low)
        later = [owner.held[group] for group in self._local]
        for group in self._local:
            owner.held[group] = []
        while low < high:
            reach = min([self._reach(owner.path, group, low, high) for group in self._local])
            for group in self._local:
                self._take(owner, group, low, reach)
            low = max(reach, low + 1)
        for group, held in zip(self._local, later, strict=True):
            owner.held[group] += held

    def release(self, owner: BlockOwner) -> None:
        """Free all blocks, group by group, and in each the last block first."""
        owner = cast(WindowOwner, owner)
        self.release_blank(owner)
        for held in owner.held:
            for part in reversed(held):
                self.free += part.copy.release(part.low, part.high, self._queue)
            held.clear()
        owner.depth = owner.low = owner.high = owner.hashed = 0


def idle_blocks(found: list[Held], high: int) -> int:
    """Return how many blocks before a position are in the free queue."""
    return sum([part.copy.idle(part.low, min(part.high, high)) for part in found])
