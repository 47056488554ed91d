"""The decoding turns of the batch, which advance by any number of steps at once.

Each decode computes one token per step. Their progress is a shared tick count, and their demand for
blocks is counted by phase, so that the cost of a stride does not depend on the number of turns. All
values are integers, so that a stride has exactly the result of single steps.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from servers.profiles import Profile, WindowTimes

if TYPE_CHECKING:
    from servers.sim.sequence import Sequence


def decodes_of(profile: Profile) -> Decodes:
    if profile.window is None:
        return Decodes(profile.block_tokens)
    kind = ChunkDecodes if profile.window.chunked else WindowDecodes
    return kind(profile.block_tokens, profile.window)


class Decodes:
    """The turns whose prompt is computed and whose output is incomplete."""

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.tick = 0
        """Number of decode steps."""
        self.context = 0
        """Number of context tokens that the next step reads, summed over all decodes."""
        self._block = block_tokens
        self._phase = [0] * block_tokens
        """Number of decodes by phase: a decode of phase p opens a block at each tick t with
        (t + p) % block = 0."""
        self._finish: list[tuple[int, int, Sequence]] = []

    def join(self, sequence: Sequence) -> None:
        """Add a turn whose latest token is sampled and has no KV yet."""
        sequence.joined_tick = self.tick
        sequence.joined_computed = sequence.computed
        self.count += 1
        self.context += sequence.computed + 1
        self._phase[(sequence.computed - self.tick) % self._block] += 1
        sequence.finish_tick = (
            self.tick + sequence.submission.output_tokens - sequence.view.output_tokens
        )
        heapq.heappush(self._finish, (sequence.finish_tick, sequence.admission, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Write the turn's progress into its sequence and remove it."""
        self.refresh(sequence)
        self.count -= 1
        self.context -= sequence.computed + 1
        self._phase[(sequence.computed - self.tick) % self._block] -= 1
        sequence.joined_tick = sequence.finish_tick = None

    def refresh(self, sequence: Sequence) -> None:
        """Write a decode's progress into its sequence; do nothing for other turns."""
        if sequence.joined_tick is None:
            return
        steps = self.tick - sequence.joined_tick
        computed = sequence.joined_computed + steps
        sequence.view.output_tokens += computed - sequence.computed
        sequence.computed = computed

    def advance(self, steps: int) -> None:
        self.tick += steps
        self.context += steps * self.count

    def steps_to_finish(self) -> int | None:
        """Return the number of steps until the first decode is complete; None without decodes."""
        heap = self._finish
        while heap and heap[0][2].finish_tick != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] - self.tick if heap else None

    def pop_finished(self) -> list[Sequence]:
        """Remove and return the complete decodes, in order of admission."""
        done = []
        while self.steps_to_finish() == 0:
            sequence = heapq.heappop(self._finish)[2]
            self.leave(sequence)
            done.append(sequence)
        return done

    def opens_block(self, sequence: Sequence) -> bool:
        """Return whether the turn's next token opens a block. Call `refresh` first."""
        return sequence.computed % self._block == 0

    def blocks_needed(self, steps: int, after: int = 0) -> int:
        """Return the number of blocks that the decodes open in `steps` steps, beginning `after`
        steps from now."""
        if not self.count:
            return 0
        rest = steps % self._block
        needed = steps // self._block * self.count
        if rest:
            high = -(self.tick + after) % self._block
            for phase in range(high - rest + 1, high + 1):  # A negative one counts from the end.
                needed += self._phase[phase]
        return needed


class WindowDecodes(Decodes):
    """Decodes of a model whose layers, some or all, have a sliding window: what those layers read
    grows until a turn's context fills the window."""

    def __init__(self, block_tokens: int, window: WindowTimes) -> None:
        super().__init__(block_tokens)
        self._window = window
        self._read = 0
        """Number of tokens that the next step reads in these layers, summed over all decodes."""
        self._growing = 0
        """Number of decodes whose context is shorter than the window."""
        self._full_at: Counter[int] = Counter()
        """Number of those decodes by the tick at which the context fills the window."""

    def join(self, sequence: Sequence) -> None:
        super().join(sequence)
        self._count(sequence, 1)

    def leave(self, sequence: Sequence) -> None:
        super().leave(sequence)
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, change: int) -> None:
        context = sequence.computed + 1
        missing = self._window.tokens - context
        self._read += change * min(context, self._window.tokens)
        if missing > 0:
            self._growing += change
            full_at = self.tick + missing
            self._full_at[full_at] += change
            if not self._full_at[full_at]:
                del self._full_at[full_at]

    def advance(self, steps: int) -> None:
        super().advance(steps)
        self._read += steps * self._growing
        if reached := self._full_at.pop(self.tick, 0):
            self._reach(reached)

    def _reach(self, decodes: int) -> None:
        """Note that the contexts of this number of decodes fill the window."""
        self._growing -= decodes

    def window_ps(self, chunks: list[tuple[Sequence, int]]) -> tuple[int, int]:
        """Return the time of the next step with these prefill chunks in the layers with a window,
        and how much longer each following step takes, within `window_steps`."""
        window = self._window
        pairs = sum(window.pairs(sequence.computed, chunk) for sequence, chunk in chunks)
        first_ps = self._read * window.context_ps + pairs * window.pair_ps
        return first_ps, self._growing * window.context_ps

    def window_steps(self, chunks: list[tuple[Sequence, int]], most: int) -> int:
        """Return for how many steps, at most `most`, each takes as much longer than the one before
        it: until a decode's context fills the window, and one if a chunk's does not yet."""
        if any(sequence.computed < self._window.tokens - 1 for sequence, _ in chunks):
            return 1
        return min(most, min(self._full_at) - self.tick) if self._full_at else most


class ChunkDecodes(WindowDecodes):
    """Decodes of a model with chunked local attention: what those layers read grows until a turn's
    context fills its chunk, and begins again with one token."""

    def _count(self, sequence: Sequence, change: int) -> None:
        """Count a decode, and when it begins a chunk: at that tick it reads one token."""
        read = self._window.read(sequence.computed + 1)
        self._read += change * read
        self._growing += change
        begins_at = self.tick + self._window.tokens - read + 1
        self._full_at[begins_at] += change
        if not self._full_at[begins_at]:
            del self._full_at[begins_at]

    def _reach(self, decodes: int) -> None:
        """Note that this number of decodes begin a chunk."""
        self._read -= decodes * self._window.tokens
        self._full_at[self.tick + self._window.tokens] += decodes

    def window_steps(self, chunks: list[tuple[Sequence, int]], most: int) -> int:
        return 1 if chunks else super().window_steps(chunks, most)
