"""The running turns of one replica, their blocks, and the batches of steps.

As in vLLM v1, a step computes one token of each decoding turn and the next prompt chunk of turns
that are partly through their prompt. There is at most one of these, the last in order of admission,
unless `--long-prefill` limits chunks, or they end at block boundaries because layers keep states.
"""

from __future__ import annotations

from servers.policies.base import Request
from servers.profiles import Profile
from servers.sim.decodes import decodes_of
from servers.sim.kv import BlockOwner, DeviceKV
from servers.sim.sequence import Sequence


class Batch:
    """The work of the next step: one token of each decode, and the prompt chunks."""

    __slots__ = (
        "chunks",
        "displaced",
        "has_slot",
        "head_may_load",
        "kept_free",
        "load_ps",
        "may_displace",
        "preempted",
        "single_step",
        "skipped",
    )

    def __init__(self) -> None:
        self.chunks: list[tuple[Sequence, int]] = []
        self.preempted: set[int] = set()
        """Ids of requests that were preempted while the batch was assembled."""
        self.has_slot: set[int] | None = None
        """Request ids of the decodes that have a slot for this step's token; None: all decodes."""
        self.displaced: list[Sequence] = []
        """Turns preempted through `Policy.displaced`. They are queued again after the batch is
        assembled."""
        self.may_displace = False
        """Whether the policy may displace a turn at the next step although nothing else changes: a
        turn was displaced, the policy was not called, or the head of the queue may not fit then."""
        self.kept_free = 0
        """Number of blocks with which the head of the queue fits. While as many are free, the
        policy displaces no turn for it."""
        self.load_ps = 0
        """CPU time of the admissions of turns that load KV. The step takes this much longer."""
        self.skipped: list[Sequence] = []
        """Decodes without a slot for this step. They are added again (`Decodes.join`) after it."""
        self.head_may_load = False
        """Whether the head of the queue, which does not fit, may fit at the next step that
        allocates a block: if its cached prefix is evicted, it may load its KV from a tier instead
        of computing its first chunk."""
        self.single_step = False
        """Whether the batch must not be computed in a stride: a model with windows or states
        computes a prompt, or its running turns may free blocks for which the head of the queue
        waits."""

    def prompt_tokens(self) -> int:
        return sum([chunk for _, chunk in self.chunks])

    def drop(self, sequence: Sequence) -> None:
        self.chunks = [(s, n) for s, n in self.chunks if s is not sequence]


class RunningTurns:
    def __init__(self, kv: DeviceKV, profile: Profile, step_tokens: int) -> None:
        self.by_id: dict[int, Sequence] = {}
        """By request id, in order of admission."""
        self.decodes = decodes_of(profile)
        self.partial: list[Sequence] = []
        """Turns whose prompt is partly computed, in order of admission."""
        self.most_chunk = step_tokens
        """Most tokens of one prompt that the next step computes."""
        self.pool = BlockOwner(())
        """Blocks of the decodes that are not assigned to individual turns yet."""
        self._kv = kv
        self._block = profile.block_tokens
        self._step_tokens = step_tokens
        self._admissions = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def views(self) -> list[Request]:
        """Return the policy's views of the turns, in order of admission. Call `refresh` first if
        decodes have advanced."""
        return [sequence.view for sequence in self.by_id.values()]

    def in_step(self) -> list[Sequence]:
        """Return the turns of which the next step may compute tokens, in order of admission."""
        return list(self.by_id.values())

    def refresh(self) -> None:
        """Write the progress of the decodes into their sequences."""
        for sequence in self.by_id.values():
            self.decodes.refresh(sequence)

    def context_tokens(self) -> int:
        """Return the number of tokens with KV, summed over the running turns."""
        partial = [sequence.computed for sequence in self.partial]
        return self.decodes.context - self.decodes.count + sum(partial)

    def start(self, sequence: Sequence, now_ps: int) -> None:
        """Add an admitted turn. `compute` then allocates the blocks of its first chunk."""
        sequence.start(now_ps)
        self._admissions += 1
        sequence.admission = self._admissions
        self.by_id[sequence.view.id] = sequence

    def remove(self, sequence: Sequence, has_slot: bool) -> None:
        """Remove a turn. `has_slot`: whether it has a slot for the next step's token."""
        del self.by_id[sequence.view.id]
        if sequence in self.partial:
            self.partial.remove(sequence)
        if sequence.joined_tick is not None:
            self.decodes.leave(sequence)
            self.settle(sequence, has_slot)

    # Blocks -------------------------------------------------------------------------------------

    def missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        """Return the number of blocks to allocate for computing `tokens` more tokens."""
        return max(0, -(-(sequence.computed + tokens) // self._block) - sequence.owner.blocks)

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Allocate blocks for a context of `tokens` tokens."""
        missing = -(-tokens // self._block) - sequence.owner.blocks
        if missing > 0:
            self._kv.allocate(sequence.owner, missing)

    def hash_full(self, sequence: Sequence, tokens: int) -> None:
        """Hash the full blocks of a context of `tokens` tokens, so that other turns can hit them.
        Call this once the step is sure to compute them, so that none of a preempted turn are hit.
        """
        self._kv.commit(sequence.owner, tokens // self._block)

    def settle(self, sequence: Sequence, has_slot: bool) -> None:
        """Give a turn that left the decodes its blocks from their pool, including the slot for the
        next step's token if it has one."""
        own = -(-(sequence.computed + has_slot) // self._block) - sequence.owner.blocks
        self.pool.blank -= own
        sequence.owner.blank += own
        self._kv.commit(sequence.owner, sequence.computed // self._block)

    def prepare_slots(self, sequence: Sequence) -> None:
        """Free the blocks that the turn's next tokens do not attend to; with full attention, none.
        Call `refresh` first if decodes have advanced."""

    def missing_for_token(self, sequence: Sequence) -> int:
        """Return the number of blocks to allocate for a decode's next token."""
        return int(self.decodes.opens_block(sequence))

    def take_slot(self, sequence: Sequence, blocks: int) -> None:
        """Allocate the missing blocks for a decode's next token."""
        self._kv.allocate(self.pool, blocks)

    def blocks_ahead(self, batch: Batch, steps: int) -> int:
        """Return the number of blocks that `steps` steps need beyond the first step's, which
        are allocated already."""
        needed = self.decodes.blocks_needed(steps - 1, after=1)
        for sequence, chunk in batch.chunks:
            tokens = sequence.computed + chunk * steps
            needed += -(-tokens // self._block) - sequence.owner.blocks
        return needed

    def allocate_ahead(self, batch: Batch, steps: int) -> None:
        """Allocate the blocks of `steps` steps; the first has its blocks already."""
        needed = self.decodes.blocks_needed(steps - 1, after=1)
        if needed:
            self._kv.allocate(self.pool, needed)
        for sequence, chunk in batch.chunks:
            tokens = sequence.computed + chunk * steps
            self.extend(sequence, tokens)
            self.hash_full(sequence, tokens)

    # Batch --------------------------------------------------------------------------------------

    def next_chunk(self, sequence: Sequence, budget: int) -> int:
        """Return the number of prompt tokens that the next step computes of the turn, if it may
        compute `budget` more tokens."""
        return min(sequence.target - sequence.computed, self.most_chunk, budget)

    def next_chunks(self) -> list[tuple[Sequence, int]]:
        """Return the next chunk of each partial turn. All decodes get a token, also those that were
        admitted after them: the turns before these use no more of a step than at that time."""
        chunks: list[tuple[Sequence, int]] = []
        budget = self._step_tokens - self.decodes.count
        for sequence in self.partial:
            chunks.append((sequence, self.next_chunk(sequence, budget)))
            budget -= chunks[-1][1]
        return chunks

    def compute(self, sequence: Sequence, chunk: int, batch: Batch) -> None:
        """Add a chunk of the turn's prompt to the batch. `hash_full` must follow."""
        self.extend(sequence, sequence.computed + chunk)
        batch.chunks.append((sequence, chunk))
        if sequence in self.partial:
            if sequence.computed + chunk == sequence.target:
                self.partial.remove(sequence)
        elif sequence.computed + chunk < sequence.target:
            self.partial.append(sequence)

    def extend_all(self, batch: Batch) -> bool:
        """Allocate blocks for the next token of each decode and the partial turns' next chunks. If
        there are too few free blocks for all of them, allocate none and return False."""
        needed, chunks = self.decodes.blocks_needed(1), self.next_chunks()
        if needed + self._missing_for(chunks) > self._kv.free:
            return False
        if needed:
            self._kv.allocate(self.pool, needed)
        for sequence, chunk in chunks:
            self.compute(sequence, chunk, batch)
            self.hash_full(sequence, sequence.computed + chunk)
        return True

    def _missing_for(self, chunks: list[tuple[Sequence, int]]) -> int:
        return sum([self.missing_blocks(sequence, chunk) for sequence, chunk in chunks])

    def skip_without_slot(self, batch: Batch, has_slot: set[int]) -> None:
        """Remove the decodes that have no slot from this step."""
        for sequence in self.in_step():
            if sequence.joined_tick is not None and sequence.view.id not in has_slot:
                self.decodes.leave(sequence)
                self.settle(sequence, has_slot=False)
                batch.skipped.append(sequence)
