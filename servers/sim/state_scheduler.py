"""The scheduler of a model with layers that keep a state (see `servers.sim.states`).

In addition to what `WindowScheduler` does, chunks of prompts end where vLLM caches a state, as in
`_mamba_block_aligned_split` of its scheduler. A chunk for which the step's budget is too small is
not computed. A turn whose hit ends at a state that the same step computes waits for the next step.
"""

from __future__ import annotations

from typing import cast

from servers.admission import Limits
from servers.profiles import Profile
from servers.profiles.kv_memory import STATE_INSIDE
from servers.sim.batching import Batch, RunningTurns
from servers.sim.kv import DeviceKV
from servers.sim.reloads import BlockDemand
from servers.sim.sequence import Sequence
from servers.sim.states import StateKV, StateOwner
from servers.sim.window_scheduler import WindowScheduler, WindowTurns, owner_of


class StateTurns(WindowTurns):
    """The running turns."""

    def __init__(self, kv: StateKV, profile: Profile, limits: Limits) -> None:
        super().__init__(kv, profile, limits.step_tokens)
        self._states = kv
        self._saves_inside = STATE_INSIDE in profile.kv_groups
        self._cap = min(limits.long_prefill or limits.step_tokens, limits.step_tokens)
        """Most tokens of a chunk, unless `--long-prefill-adaptive` raises them."""
        self.keeps_states = False
        """Whether turns keep the state that a pin needs."""

    def next_chunk(self, sequence: Sequence, budget: int) -> int:
        return self.aligned(sequence, sequence.computed, super().next_chunk(sequence, budget))

    def aligned(self, sequence: Sequence, start: int, tokens: int) -> int:
        """Return how many of the next `tokens` tokens after `start` computed ones a step computes;
        0 if they are too few."""
        block, end = self._block, start + tokens
        prefill_end = _prefill_end(sequence)
        if start >= prefill_end:
            return tokens
        inside = end >= prefill_end and self._saves_state(start, end, prefill_end)
        if end < prefill_end:
            aligned_end = end // block * block
            if aligned_end > start or block <= self._cap:
                end = aligned_end
        stops = [] if inside else [(sequence.target - 1) // block * block]
        if start % block:
            stops.append((start // block + 1) * block)
        shared = owner_of(sequence).boundary * block
        if start < shared < end:
            stops.append(start + (shared - start) // block * block)
        return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)

    def _saves_state(self, start: int, end: int, prefill_end: int) -> bool:
        """Return whether the kernels save the state at the last block boundary before `prefill_end`
        inside a chunk from `start` to `end`."""
        last = (prefill_end - 1) // self._block * self._block
        if not self._saves_inside or start % self._block:
            return False
        return start + self._block <= last and -(-end // self._block) - 1 > start // self._block

    def states(self, sequence: Sequence, start: int, end: int) -> int:
        """Return the number of state blocks, in each group, of a chunk from `start` to `end`."""
        if end < _prefill_end(sequence):
            return 1
        return 1 + self._saves_state(start, end, end)

    def missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        end = sequence.computed + tokens
        missing = max(0, -(-end // self._block) - owner_of(sequence).high)
        states = min(missing, self.states(sequence, sequence.computed, end))
        return missing + states * (self._states.groups - 1)

    def extend(self, sequence: Sequence, tokens: int) -> None:
        states = self.states(sequence, sequence.computed, tokens)
        self._states.extend(owner_of(sequence), tokens, states)

    def hash_full(self, sequence: Sequence, tokens: int) -> None:
        super().hash_full(sequence, tokens)
        if tokens >= sequence.target and self.keeps_states:
            self._states.keep(cast(StateOwner, sequence.owner), sequence.view.prompt_tokens)

    def extend_all(self, batch: Batch) -> bool:
        """Return False also if a prompt is partly computed: a decode may get no token beside it."""
        return not self.partial and super().extend_all(batch)


class StateScheduler(WindowScheduler):
    def _build(self, profile: Profile) -> tuple[DeviceKV, RunningTurns]:
        kv = StateKV(profile.kv_blocks, profile.kv_groups, profile.block_tokens)
        self._windows = self._states = kv
        self._turns = StateTurns(kv, profile, self.limits)
        return kv, self._turns

    def schedule(self) -> Batch:
        self._states.computing.clear()
        self._turns.keeps_states = self.runner.has_pinned
        return super().schedule()

    def _extend_one_by_one(self, batch: Batch) -> None:
        batch.single_step |= len(self.running.partial) > 0
        super()._extend_one_by_one(batch)

    def _demand(self, sequence: Sequence, budget: int) -> BlockDemand:
        owner = owner_of(sequence)
        hit = self._states.find(owner, (sequence.target - 1) // self._block)
        computed = hit.depth * self._block
        chunk = self._turns.aligned(sequence, computed, min(sequence.target - computed, budget))
        needed = self._blocks_of(sequence, computed, computed + chunk)
        if not self._first_chunk:
            needed = max(needed, self._blocks_of(sequence, computed, sequence.target))
        waits = not chunk or self._states.is_computing(owner, hit.depth)
        return BlockDemand(hit.depth, [], needed + hit.idle, waits=waits)

    def _blocks_of(self, sequence: Sequence, computed: int, tokens: int) -> int:
        """Return the number of blocks to allocate after a hit of `computed` tokens."""
        blocks = -(-tokens // self._block) - computed // self._block
        states = min(blocks, self._turns.states(sequence, computed, tokens))
        return blocks + states * (self._states.groups - 1)


def _prefill_end(sequence: Sequence) -> int:
    """Return the number of tokens up to which chunks end at boundaries: a preempted turn computes
    its answer again, without the last token."""
    return max(sequence.view.prompt_tokens, sequence.target - 1)
