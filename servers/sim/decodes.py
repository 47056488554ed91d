"""The decoding part of the batch, advanced by any number of steps at once.

Each member computes one token per step. Their progress is a shared tick count and what they need
is kept as sums, so that a stride costs the same for one turn as for hundreds, and gives exactly
what single steps give: everything here is whole numbers.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers.sim.sequence import Sequence


class Decodes:
    """Turns whose prompt is computed and whose answer is not complete."""

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.tick = 0
        """Decode steps so far."""
        self.context = 0
        """Tokens that the next step's attention reads, over all members."""
        self._block = block_tokens
        self._phase = [0] * block_tokens
        """Members by phase: one of phase p opens a block at ticks t with (t + p) % block = 0."""
        self._finish: list[tuple[int, int, Sequence]] = []

    def join(self, sequence: Sequence) -> None:
        """Its last token out is sampled and not yet computed."""
        sequence.joined_tick = self.tick
        sequence.joined_computed = sequence.computed
        self.count += 1
        self.context += sequence.computed + 1
        self._phase[(sequence.computed - self.tick) % self._block] += 1
        sequence.finish_tick = self.tick + sequence.wanted - sequence.view.output_tokens
        heapq.heappush(self._finish, (sequence.finish_tick, sequence.admission, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Bring the sequence up to date and forget it."""
        self.refresh(sequence)
        self.count -= 1
        self.context -= sequence.computed + 1
        self._phase[(sequence.computed - self.tick) % self._block] -= 1
        sequence.joined_tick = sequence.finish_tick = None

    def refresh(self, sequence: Sequence) -> None:
        """Write progress since it joined into the sequence."""
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
        """Steps until the first member has all its tokens; None without members."""
        heap = self._finish
        while heap and heap[0][2].finish_tick != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] - self.tick if heap else None

    def pop_finished(self) -> list[Sequence]:
        """Members with all their tokens, in order of admission; they leave."""
        done = []
        while self.steps_to_finish() == 0:
            sequence = heapq.heappop(self._finish)[2]
            self.leave(sequence)
            done.append(sequence)
        return done

    def opens_block(self, sequence: Sequence) -> bool:
        """Whether the next step's token opens a block (the sequence must be up to date)."""
        return sequence.computed % self._block == 0

    def blocks_needed(self, steps: int, after: int = 0) -> int:
        """Blocks that the members open in so many steps, beginning `after` steps from now."""
        cycles, rest = divmod(steps, self._block)
        needed = cycles * self.count
        if rest and self.count:
            high = -(self.tick + after) % self._block
            low = high - rest + 1
            if low >= 0:
                needed += sum(self._phase[low : high + 1])
            else:
                needed += sum(self._phase[: high + 1]) + sum(self._phase[low:])
        return needed
