"""The scheduler of turns with speculative decoding (see `servers.speculation`), as in vLLM 0.32.

A step computes the last sampled token of a decode and its drafts, and generates one token more than
it accepts. So in addition to what `Scheduler` does:

- Running turns take tokens of the step in order of admission. If few are left, a decode gets fewer
  drafts, and the turns after it skip the step.
- Slots are allocated for all tokens of the step, and for the next drafts of methods with draft
  layers. Blocks that only rejected drafts need stay with the turn. Only verified tokens are hashed.
- With draft layers, the last block of a prefix hit is computed again. As vLLM then keeps two copies
  of it, blocks are as in `WindowKV`, with a single group.
- A turn with one token left to compute is admitted with as many placeholders as a decode has
  drafts, if no prompt is partly computed. If the step has no room for them, the turn waits.

Decodes advance by different numbers of tokens, so each step is computed on its own. Models with one
KV group only, without offload tiers.
"""

from __future__ import annotations

from servers.profiles import Profile
from servers.profiles.drafts import step_ps
from servers.sim.batching import Batch
from servers.sim.decodes import Decodes
from servers.sim.reloads import BlockDemand
from servers.sim.sequence import Sequence
from servers.sim.window_scheduler import WindowScheduler, WindowTurns, owner_of
from servers.sim.windows import Hit, WindowKV, WindowOwner, idle_blocks
from servers.speculation import Speculation, turn_key


class SpeculativeDecodes(Decodes):
    """The decodes, each with the tokens that the next step computes of it."""

    def __init__(self, block_tokens: int, speculation: Speculation) -> None:
        super().__init__(block_tokens)
        self.tokens: dict[int, int] = {}
        """Tokens of the next step by request id, for turns that are decoding or about to: the last
        sampled or last prompt token, and drafts or placeholders."""
        self._speculation = speculation
        self._turns: dict[int, Sequence] = {}
        self._keys: dict[int, int] = {}
        self._done: list[Sequence] = []

    def join(self, sequence: Sequence) -> None:
        sequence.joined_tick = self.tick
        self.count += 1
        self.context += sequence.computed + 1
        view = sequence.view
        self._turns[view.id] = sequence
        self._keys[view.id] = turn_key(view.program_id, view.index)

    def leave(self, sequence: Sequence) -> None:
        self.count -= 1
        self.context -= sequence.computed + 1
        sequence.joined_tick = None
        del self._turns[sequence.view.id], self._keys[sequence.view.id]

    def refresh(self, sequence: Sequence) -> None:
        """Do nothing: `advance` writes the progress."""

    def advance(self, steps: int) -> None:
        """Add the tokens that one step generates."""
        self.tick += steps
        for sequence in list(self._turns.values()):
            view = sequence.view
            drafts = self.tokens[view.id] - 1
            accepted = self._speculation.accepted(self._keys[view.id], view.output_tokens)
            left = sequence.submission.output_tokens - view.output_tokens
            generated = min(1 + min(accepted, drafts), left)
            sequence.computed += generated
            view.output_tokens += generated
            self.context += generated
            if generated == left:
                self.leave(sequence)
                self._done.append(sequence)

    def pop_finished(self) -> list[Sequence]:
        done, self._done = self._done, []
        return sorted(done, key=lambda sequence: sequence.admission)

    def batch_ps(self, profile: Profile, chunks: list[tuple[Sequence, int]]) -> int:
        """Return the time of the next step with these prefill chunks."""
        tokens = self.tokens
        return step_ps(
            profile,
            self._speculation,
            [(tokens.get(s.view.id, n), s.computed) for s, n in chunks],
            [(tokens[i], s.computed + tokens[i]) for i, s in self._turns.items()],
        )


class SpeculativeKV(WindowKV):
    def __init__(self, blocks: int, block_tokens: int, drops_block: bool) -> None:
        super().__init__(blocks, (None,), block_tokens)
        self._drops = int(drops_block)

    def find(self, owner: WindowOwner, limit: int) -> Hit:
        found = self._oldest(owner.path, self._full, 0, limit)
        depth = max(0, found[-1].high - self._drops) if found else 0
        return Hit(depth, idle_blocks(found, depth))


class SpeculativeTurns(WindowTurns):
    """The running turns."""

    def __init__(
        self, kv: SpeculativeKV, profile: Profile, step_tokens: int, speculation: Speculation
    ) -> None:
        super().__init__(kv, profile, step_tokens)
        self.decodes = self.drafting = SpeculativeDecodes(profile.block_tokens, speculation)
        self.room = min(profile.max_model_len, profile.kv_blocks * profile.block_tokens)
        """The longest context. Slots are not allocated beyond it."""
        self._drafts, self._lookahead = speculation.tokens, speculation.lookahead

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for a turn's tokens, computed or about to be computed."""
        return -(-min(tokens + self._lookahead, self.room) // self._block)

    def missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        return max(0, self.blocks_for(sequence.computed + tokens) - owner_of(sequence).high)

    def extend(self, sequence: Sequence, tokens: int) -> None:
        self._windows.extend(owner_of(sequence), self.blocks_for(tokens) * self._block)

    def hash_full(self, sequence: Sequence, tokens: int) -> None:
        self._windows.hash_full(owner_of(sequence), tokens)

    def extend_all(self, batch: Batch) -> bool:
        """Return False, so that the scheduler allocates one turn after another."""
        return False

    def next_tokens(self, sequence: Sequence, left: int) -> int:
        """Return how many tokens the step computes of a running turn, if `left` are left."""
        if sequence.joined_tick is None:
            return self.next_chunk(sequence, left)
        most = min(left, self.most_chunk, self.room - sequence.computed - 1)
        return min(1 + self._drafts, most)


class SpeculativeScheduler(WindowScheduler):
    def _build(self, profile: Profile) -> tuple[SpeculativeKV, SpeculativeTurns]:
        speculation = self.limits.speculation
        if speculation is None:
            raise RuntimeError("no speculation")
        self._speculation = speculation
        self._left = 0
        """Tokens that the step may still compute."""
        self._pads = True
        """Whether turns are admitted with placeholders: no prompt is partly computed."""
        self._has_scheduled = False
        """Whether the step computes tokens of a running turn."""
        kv = SpeculativeKV(profile.kv_blocks, profile.block_tokens, speculation.drops_block)
        self._windows, self._most_window_blocks = kv, 0
        self._turns = SpeculativeTurns(kv, profile, self.limits.step_tokens, speculation)
        return kv, self._turns

    def _extend_one_by_one(self, batch: Batch) -> None:
        turns, tokens = self._turns, self._turns.drafting.tokens
        tokens.clear()
        batch.single_step, batch.has_slot = True, set()
        self._left, self._pads, self._has_scheduled = self._step_tokens, True, False
        for sequence in list(turns.by_id.values()):
            if sequence.view.id in batch.preempted:
                continue
            if self._left <= 0:
                break
            taken = turns.next_tokens(sequence, self._left)
            missing = turns.missing_blocks(sequence, taken)
            if not self._make_room_for_running(sequence, missing, batch):
                break
            self._left -= taken
            self._has_scheduled = True
            if sequence.joined_tick is None:
                self._pads = False
                turns.compute(sequence, taken, batch)
                continue
            turns.extend(sequence, sequence.computed + taken)
            tokens[sequence.view.id] = taken
            batch.has_slot.add(sequence.view.id)
        for sequence, chunk in batch.chunks:
            turns.hash_full(sequence, sequence.computed + chunk)
        turns.skip_without_slot(batch, batch.has_slot)
        batch.has_slot = None

    def _preempt(self, victim: Sequence, batch: Batch) -> None:
        self._left += self._turns.drafting.tokens.pop(victim.view.id, 0)
        self._left += sum([chunk for sequence, chunk in batch.chunks if sequence is victim])
        super()._preempt(victim, batch)

    def _budget(self, batch: Batch) -> int:
        return self._left

    def _padded(self, target: int, computed: int) -> bool:
        """Return whether a turn is admitted with placeholders for drafts."""
        if target - computed != 1 or not self._pads or not (self._has_scheduled or computed):
            return False
        return computed + self._speculation.tokens + 2 <= self._turns.room

    def _demand(self, sequence: Sequence, budget: int) -> BlockDemand:
        target = sequence.target
        hit = self._windows.find(owner_of(sequence), (target - 1) // self._block)
        computed = hit.depth * self._block
        chunk, waits = min(target - computed, budget), False
        if self._padded(target, computed):
            chunk = 1 + self._speculation.tokens
            waits = chunk > budget
        needed = self._turns.blocks_for(computed + chunk)
        if not self._first_chunk:
            needed = max(needed, -(-target // self._block))
        return BlockDemand(hit.depth, [], needed - hit.depth + hit.idle, waits=waits)

    def _start(self, sequence: Sequence, budget: int, batch: Batch) -> None:
        taken = self._turns.next_chunk(sequence, budget)
        if self._padded(sequence.target, sequence.computed):
            taken = self._turns.drafting.tokens[sequence.view.id] = 1 + self._speculation.tokens
            self._turns.extend(sequence, sequence.computed + taken)
        self._left -= taken
        super()._start(sequence, budget, batch)

    def _fits(self, head: Sequence) -> bool:
        self._pads = False
        return super()._fits(head)
