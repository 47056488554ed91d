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
in `DeviceKV`, each hashed block is an object, and a content has a list of copies, oldest first.

Blocks of full attention may be longer than those of the other groups, or shorter. Blocks are then
hashed, and hits end, at multiples of the longer ones. Depths are in blocks of `block_tokens`
tokens, the length of the shorter ones, and positions in the blocks of a group's table. The content
of a longer block is that of its end.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, cast

from servers.profiles.kv_memory import EVEN, Lengths
from servers.sim.kv import BlockOwner, DeviceKV, Path
from servers.sim.window_blocks import Block, Content

_NO_WINDOW: Final = 1 << 60


class WindowOwner(BlockOwner):
    """The block tables of one turn, or the blocks of its pin. `depth` counts the hashed blocks of
    the full-attention group, and `blank` the blocks without a hash of all groups."""

    __slots__ = (
        "boundary",
        "computed",
        "contents",
        "full",
        "groups",
        "hashed",
        "high",
        "low",
        "windows",
    )

    def __init__(self, path: Path, contents: list[Content], groups: int) -> None:
        super().__init__(path)
        self.contents = contents
        """By depth."""
        self.groups = groups
        """Number of groups."""
        self.full: list[Block] = []
        """The hashed blocks of the full-attention group, which are the first ones of its table."""
        self.windows: dict[int, tuple[Block, ...]] = {}
        """The hashed blocks of the window groups by position in the table."""
        self.low = 0
        """Positions before this one have left the window and have no block."""
        self.high = 0
        """Depth of the tables."""
        self.hashed = 0
        """Positions of the window groups before this one were hashed or will never be."""
        self.computed = 0
        """Number of tokens with KV at the last scheduled step, while the turn decodes."""
        self.boundary = 0
        """Depth of the full-attention group's hit if it is longer than the turn's hit, else 0."""

    @property
    def blocks(self) -> int:
        return len(self.full) + (self.groups - 1) * len(self.windows) + self.blank


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
        self._is_full = [window is None for window in windows]
        self.window = next((window for window in windows if window is not None), _NO_WINDOW)
        self._block = block_tokens
        self._full_length, self._length = lengths
        self._aligned = max(lengths)
        self.window_tokens = self._length * block_tokens
        """Tokens of a window block."""
        self.leave_every = self.window_tokens
        """Number of tokens after which further blocks of a turn leave the window."""
        self._hit_blocks = -(-(self.window - 1) // self.window_tokens)
        """Number of window blocks that a hit needs."""
        self._lru: OrderedDict[Block, None] = OrderedDict()
        """The free queue without its blank blocks, which are at its front."""

    def owner(self, path: Path) -> WindowOwner:
        return WindowOwner(path, self._contents(path), self.groups)

    def _contents(self, path: Path) -> list[Content]:
        """Return the contents of a sequence by depth."""
        contents: list[Content] = []
        for segment, exit_depth in path:
            known = segment.contents
            known += [Content() for _ in range(exit_depth - segment.start - len(known))]
            begins = len(contents) - segment.start
            contents += known[begins : exit_depth - segment.start]
        return contents

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
        contents, length = owner.contents, self._full_length
        longest, most = 0, min(limit, len(contents)) - length + 1
        while longest < most and contents[longest + length - 1].full:
            longest += length
        longest -= longest % self._aligned
        depth = self._window_hit(contents, longest)
        owner.boundary = longest if longest > depth else 0
        idle = 0
        for content in contents[length - 1 : depth : length]:
            idle += not content.full[0].references
        for position in range(self.passed(depth * self._block), depth // self._length):
            for copies in self._content(contents, position).windows:
                idle += not copies[0].references
        return Hit(depth, idle)

    def _content(self, contents: list[Content], position: int) -> Content:
        """Return the content of the window blocks at a position."""
        return contents[(position + 1) * self._length - 1]

    def _window_hit(self, contents: list[Content], longest: int) -> int:
        """Return the largest depth, at most `longest`, before which the window is cached."""
        found, length = 0, self._length
        for depth in range(longest, 0, -length):
            windows = contents[depth - 1].windows
            if not windows or not all(windows):
                found = 0
            elif found or not depth % self._aligned:
                found += 1
                if found >= self._hit_blocks:
                    return depth + (found - 1) * length
        return found * length // self._aligned * self._aligned

    def take_hit(self, owner: BlockOwner, depth: int) -> None:
        """Give a hit of `depth` blocks to an owner without blocks."""
        owner = cast(WindowOwner, owner)
        owner.low = self.passed(depth * self._block)
        owner.high, owner.hashed = depth, depth // self._length
        for content in owner.contents[self._full_length - 1 : depth : self._full_length]:
            owner.full.append(self._touch(content.full[0]))
        owner.depth = depth
        for position in range(owner.low, owner.hashed):
            windows = self._content(owner.contents, position).windows
            owner.windows[position] = tuple(self._touch(copies[0]) for copies in windows)

    def _touch(self, block: Block) -> Block:
        if not block.references:
            del self._lru[block]
            self.free -= 1
        block.references += 1
        return block

    # Slots --------------------------------------------------------------------------------------

    def leave_window(self, owner: WindowOwner, computed: int) -> None:
        """Free the blocks before the window of a turn that has computed `computed` tokens."""
        low = min(self.passed(computed), -(-owner.high // self._length))
        if low <= owner.low:
            return
        passed = range(low - 1, owner.low - 1, -1)
        left = [blocks for p in passed if (blocks := owner.windows.pop(p, None)) is not None]
        blank = (self.groups - 1) * self._unhashed_before(owner, low, len(passed) - len(left))
        owner.low = low
        owner.blank -= blank
        self._blank += blank
        self.free += blank
        for group in range(self.groups - 1):
            for blocks in left:
                self._free(blocks[group])

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

    def allocate(self, owner: BlockOwner, blocks: int) -> None:
        owner.blank += blocks
        self.free -= blocks
        if blocks <= self._blank:
            self._blank -= blocks
            return
        for _ in range(blocks - self._blank):
            block, _ = self._lru.popitem(last=False)
            block.copies.remove(block)
        self._blank = 0

    def hash_full(self, owner: WindowOwner, tokens: int) -> None:
        """Hash the full-attention blocks of `tokens` computed tokens."""
        depth, length = self._hashed_depth(tokens), self._full_length
        if depth > owner.depth:
            contents = owner.contents[owner.depth + length - 1 : depth : length]
            owner.full += [Block(content.full) for content in contents]
            owner.blank -= len(contents)
            owner.depth = depth

    def _hashed_depth(self, tokens: int) -> int:
        """Return the depth up to which blocks of `tokens` computed tokens are hashed."""
        return tokens // (self._block * self._aligned) * self._aligned

    def hash_windows(self, owner: WindowOwner, tokens: int, prompt_tokens: int) -> None:
        """Hash the window blocks of `tokens` computed tokens from which a turn can resume."""
        end = self._hashed_depth(tokens) // self._length
        if end <= owner.hashed:
            return
        for depth in {self._hashed_depth(prompt_tokens - 1), owner.boundary}:
            boundary = depth // self._length
            for position in range(
                max(owner.hashed, boundary - self._hit_blocks), min(end, boundary)
            ):
                if position not in owner.windows:
                    content = self._content(owner.contents, position)
                    owner.windows[position] = self._hash_window(content)
                    owner.blank -= self.groups - 1
        owner.hashed = end

    def _hash_window(self, content: Content) -> tuple[Block, ...]:
        if not content.windows:
            content.windows = tuple([] for _ in range(self.groups - 1))
        return tuple(Block(copies) for copies in content.windows)

    # Ends ---------------------------------------------------------------------------------------

    def take_left(self, owner: WindowOwner, prompt_tokens: int) -> None:
        """Take those blocks again that have left the window and that the next turn's hit needs: the
        last window before the end of the prompt, unless they were evicted."""
        boundary = self._hashed_depth(prompt_tokens - 1) // self._length
        for position in range(max(0, boundary - self._hit_blocks), min(boundary, owner.low)):
            windows = self._content(owner.contents, position).windows
            if windows and all(windows):
                owner.windows[position] = tuple(self._touch(copies[0]) for copies in windows)

    def release(self, owner: BlockOwner) -> None:
        """Free all blocks, group by group, and in each the last block first."""
        owner = cast(WindowOwner, owner)
        self.release_blank(owner)
        windows = [owner.windows[position] for position in sorted(owner.windows, reverse=True)]
        group = 0
        for is_full in self._is_full:
            if is_full:
                for block in reversed(owner.full):
                    self._free(block)
            else:
                for blocks in windows:
                    self._free(blocks[group])
                group += 1
        owner.full, owner.windows = [], {}
        owner.depth = owner.low = owner.high = owner.hashed = 0

    def _free(self, block: Block) -> None:
        block.references -= 1
        if not block.references:
            self._lru[block] = None
            self.free += 1
