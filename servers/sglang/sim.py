"""A model of SGLang's scheduler in virtual time, which needs no SGLang.

In: the scheduler `fcfs` or `lpm`, a profile, limits, and turns with their submission times. Out:
finished turns and events. It makes the decisions of SGLang 0.5.23 without overlap
(`event_loop_normal`), one batch after the other:

- Prompts run before decodes, in batches of their own with chunks of at most `step_tokens`. At most
  one prompt is partly computed; it is continued first.
- A turn is admitted if the rest of its prompt and of its answer, of at most 4,096 tokens, fits in
  the memory that is free or evictable, less a share of what the running answers still lack. That
  share falls with each decode step, and is estimated anew after a retraction. When a turn was not
  admitted, no other is tried until one leaves the batch.
- What a turn has computed is in the radix cache from the end of its prompt's chunks on, and after
  its last token. Equal tokens are kept once.
- If a decode step lacks memory, the turns with the fewest answered tokens are retracted, of those
  the one with the longest prompt first. They lose what they computed after their prompt, and wait
  as the last of the queue.
- `lpm` sorts the queue by cached tokens if it has at most 128 turns. Of turns that share a
  beginning that is not cached yet, all but one come last.

`servers.sglang.virtual_time` runs SGLang itself; both make equal decisions (`make differential
ENGINE=sglang`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.sglang.radix_tree import Node, RadixTree, TurnTokens
from servers.sglang.schedulers import LongestPrefixMatch, SglangScheduler
from servers.sglang.turns import SteppedSglang
from servers.sim import EngineUsage, Limits, Sequence
from servers.sim.strides import duration_ps, steps_until

RESERVED_ANSWER = 4096
"""Tokens of an answer for which memory is reserved at most."""
PREFILL_TOKENS = 16384
"""Tokens of prompts after which a batch takes no further one (`--max-prefill-tokens`)."""
FIRST_SHARE = 0.7
LEAST_SHARE = FIRST_SHARE * 0.14
SHARE_DECAY = (FIRST_SHARE - LEAST_SHARE) / 600
"""The share of the missing answers that is reserved, and by how much it falls per decode step."""
RETRACT_TOKENS = 20
"""Tokens per turn that a retraction makes room for."""
MATCHED_TURNS = 128
"""Waiting turns whose cached tokens are looked up at most."""
TOUCH_EVERY = 32
"""In how many passes over the queue `fcfs` marks what waiting turns will hit as used once."""
SHARED_TOKENS = 32
"""Tokens of a beginning that is shared if a turn has no longer hit."""


class _Turn:
    """A turn that waits or runs."""

    __slots__ = (
        "answer", "answered", "cached", "computed", "contents", "end", "node", "prompt", "rank",
        "sequence",
    )  # fmt: skip

    def __init__(self, sequence: Sequence, contents: TurnTokens, root: Node) -> None:
        self.sequence, self.contents = sequence, contents
        self.prompt = sequence.submission.prompt_tokens
        self.answer = sequence.submission.output_tokens
        self.answered = 0
        self.computed = 0
        """Tokens with KV, of which the first `cached` are in the radix cache, up to `node`."""
        self.cached, self.node = 0, root
        self.end = 0
        """Tokens with KV after the batch that computes the turn's prompt."""
        self.rank = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt + self.answered

    @property
    def missing(self) -> int:
        """Tokens of the answer."""
        return self.answer - self.answered


class _Budget:
    """What a batch of prompts may still take, in tokens."""

    def __init__(self, step_tokens: int) -> None:
        self.reserved = 0.0
        self.chunk, self.prompts = step_tokens, PREFILL_TOKENS

    def take(self, turn: _Turn, tokens: int) -> bool:
        """Take tokens of the turn's prompt; return whether these are the last."""
        turn.end = turn.computed + tokens
        is_last = turn.end == turn.tokens
        self.reserved += tokens + 1 + (min(turn.answer, RESERVED_ANSWER) if is_last else 0)
        self.chunk -= tokens
        self.prompts -= tokens
        return is_last

    @property
    def is_spent(self) -> bool:
        return self.chunk <= 0 or self.prompts <= 0


class SglangSim(SteppedSglang):
    def __init__(
        self,
        scheduler: SglangScheduler,
        profile: Profile,
        limits: Limits,
        *,
        on_end: Callable[[Sequence], None],
        on_event: Callable[[EventRecord], None] | None = None,
        strides: bool = True,
    ) -> None:
        """`strides`: compute all decode steps up to the next event at once."""
        super().__init__(scheduler, profile, limits, on_end, on_event)
        self.tree = RadixTree()
        self.free = self._kv_tokens
        """Tokens of the KV memory that neither turns nor the radix cache have."""
        self._max_num_seqs = limits.max_num_seqs
        self._matches_queue = isinstance(scheduler, LongestPrefixMatch)
        self._caches, self._strides = scheduler.radix_cache, strides
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []
        """The decodes."""
        self._partial: _Turn | None = None
        """The turn whose prompt is partly computed."""
        self._is_full = False
        """Whether no turn is tried until one leaves the batch."""
        self._share = FIRST_SHARE
        self._passes = 0

    def usage(self) -> EngineUsage:
        waiting = len(self._waiting)
        running = len(self._running) + (self._partial is not None)
        return self._usage(self._available, waiting, running)

    def run(self, programs: Iterable[object] = ()) -> None:
        self._due.begin(programs)
        while not self._stopped:
            self._due.take(self.now_ps, self._take)
            if batch := self._prompts():
                self._prefill(batch)
            elif self._running:
                self._decode()
            elif (due_ps := self._due.next_ps) is not None:
                if not self._waiting:
                    self._share = FIRST_SHARE
                self.now_ps = max(self.now_ps, due_ps)
            elif self._waiting:
                raise RuntimeError("turns wait, no turn runs, and nothing will free memory")
            else:
                break

    def _take(self, sequence: Sequence) -> None:
        self._arrive(sequence)
        contents = TurnTokens(sequence.submission.path, self.profile.block_tokens)
        self._waiting.append(_Turn(sequence, contents, self.tree.root))

    # Memory -------------------------------------------------------------------------------------

    @property
    def _available(self) -> int:
        return self.free + self.tree.evictable

    def _make_room(self, tokens: int) -> bool:
        """Evict until `tokens` tokens are free; return whether they are."""
        if tokens > self.free:
            self.free += self.tree.evict(tokens - self.free)
        return tokens <= self.free

    def _allocate(self, tokens: int) -> None:
        if not self._make_room(tokens):
            raise RuntimeError(f"a batch needs {tokens} tokens of KV, and {self.free} are free")
        self.free -= tokens

    def _match(self, turn: _Turn, tokens: int) -> Node:
        return self.tree.match(turn.contents, tokens) if self._caches else self.tree.root

    def _cache(self, turn: _Turn) -> None:
        """Move what the turn has computed into the radix cache, with a node that ends with its
        prompt."""
        if not self._caches:
            return
        node, known = self.tree.insert(turn.contents, turn.computed)
        self.free += max(0, known - turn.cached)
        if turn.prompt < turn.computed:
            self.tree.insert(turn.contents, turn.prompt)
        self.tree.unlock(turn.node)
        self.tree.lock(node)
        turn.node, turn.cached = node, turn.computed

    def _release(self, turn: _Turn) -> None:
        self.free += turn.computed - turn.cached
        self.tree.unlock(turn.node)

    # Admission ----------------------------------------------------------------------------------

    def _prompts(self) -> list[_Turn]:
        """Return the turns whose prompts the next batch computes, up to the `end` of each."""
        partial = self._partial
        if partial is not None:
            self._cache(partial)
        if not self._running:
            self._is_full = False
        if partial is None:
            if self._is_full or not self._waiting:
                return []
            if len(self._running) >= self._max_num_seqs:
                self._is_full = True
                return []
        self._order_queue()
        batch = self._admit()
        if batch:
            self._waiting = [turn for turn in self._waiting if not turn.end]
            self._allocate(sum(turn.end - turn.computed for turn in batch))
        return batch

    def _order_queue(self) -> None:
        waiting = self._waiting
        if self._matches_queue and len(waiting) <= MATCHED_TURNS:
            self._rank_by_hit()
        elif self._caches and waiting:
            if self._passes % TOUCH_EVERY == 0:
                for turn in reversed(waiting[:MATCHED_TURNS]):
                    self._match(turn, turn.tokens)
            self._passes += 1

    def _rank_by_hit(self) -> None:
        beginnings: set[object] = set()
        for turn in self._waiting:
            hit = self._match(turn, turn.tokens).end
            turn.rank = -min(hit, turn.tokens - 1)
            if hit <= SHARED_TOKENS <= turn.tokens:
                beginning = turn.contents.at(SHARED_TOKENS - 1)
                if beginning in beginnings:
                    turn.rank = math.inf
                beginnings.add(beginning)
        self._waiting.sort(key=lambda turn: turn.rank)

    def _admit(self) -> list[_Turn]:
        budget, batch = _Budget(self._step_tokens), []
        for turn in self._running:  # One by one: the sum of a list depends on Python's version.
            budget.reserved += min(turn.missing, RESERVED_ANSWER) * self._share
        if (partial := self._partial) is not None:
            most = int(self._available - budget.reserved)
            chunk = min(self._step_tokens, most if most > 0 else self._step_tokens)
            if budget.take(partial, min(partial.tokens - partial.computed, chunk)):
                self._partial = None
            batch.append(partial)
        for turn in self._waiting:
            if self._available > budget.reserved and budget.is_spent:
                break
            self._is_full |= len(batch) >= self._max_num_seqs - len(self._running)
            if self._is_full:
                break
            if not self._fits(turn, budget):
                self._is_full = bool(batch or self._running)
                break
            batch.append(turn)
            if not budget.take(turn, min(turn.tokens - turn.computed, budget.chunk)):
                self._partial = turn
            if self._available <= budget.reserved:
                self._is_full = True
                break
        return batch

    def _fits(self, turn: _Turn, budget: _Budget) -> bool:
        """Return whether the turn can be admitted. Its hit is locked then."""
        node = self._match(turn, turn.tokens - 1)
        self.tree.lock(node)
        needed = turn.tokens - node.end + min(turn.missing, RESERVED_ANSWER) + 1
        if needed >= self._available - budget.reserved:
            self.tree.unlock(node)
            return False
        turn.node, turn.cached, turn.computed = node, node.end, node.end
        return True

    # Batches ------------------------------------------------------------------------------------

    def _prefill(self, batch: list[_Turn]) -> None:
        """Compute chunks of prompts."""
        chunks = [(turn.end - turn.computed, turn.computed) for turn in batch]
        for turn in batch:
            self._admit_if_waiting(turn.sequence, turn.tokens, turn.computed)
        self._advance(1, self.profile.batch_ps(chunks, []))
        for turn in batch:
            turn.computed = turn.end
        done = [turn for turn in batch if turn is not self._partial]
        for turn in done:
            turn.answered += 1
            self._cache(turn)
        decodes = [turn for turn in done if turn.missing]
        if len(decodes) < len(batch) or not self._running:
            self._is_full = False
        self._running = self._running + decodes
        self._end(done, [turn for turn in done if not turn.missing])

    def _decode(self) -> None:
        """Compute decode steps until something may be decided differently."""
        fits = self._make_room(len(self._running))
        if not fits:
            self._retract()
        running = self._running
        turns, context = len(running), sum(turn.tokens for turn in running)
        first_ps = self.profile.step_ps(turns, turns, context, 0)
        increment_ps = self.profile.increment_ps(turns, 0)
        steps = self._steps(first_ps, increment_ps)
        self._allocate(turns * steps)
        for _ in range(steps if fits else 0):
            if self._share <= LEAST_SHARE:
                break
            self._share = max(self._share - SHARE_DECAY, LEAST_SHARE)
        self._advance(steps, duration_ps(steps, first_ps, increment_ps))
        for turn in running:
            turn.computed += steps
            turn.answered += steps
        finished = [turn for turn in running if not turn.missing]
        if finished:
            self._is_full = False
            self._running = [turn for turn in running if turn.missing]
        for turn in finished:
            self._cache(turn)
        self._end((), finished)

    def _steps(self, first_ps: int, increment_ps: int) -> int:
        """Return the number of decode steps in which no turn ends before the last, none arrives or
        is tried, and none is retracted."""
        if not self._strides or (self._waiting and not self._is_full):
            return 1
        most = min(turn.missing for turn in self._running)
        most = min(most, self._available // len(self._running))
        if (due_ps := self._due.next_ps) is None:
            return most
        return steps_until(due_ps - self.now_ps, most, first_ps, increment_ps)

    def _retract(self) -> None:
        """Let turns wait until the others have room for a decode step. They run on in the order in
        which they are kept."""
        kept = sorted(self._running, key=lambda turn: (turn.answered, -turn.prompt), reverse=True)
        retracted: list[_Turn] = []
        while len(kept) > 1 and (not retracted or not self._make_room(len(kept))):
            turn = kept.pop()
            self._release(turn)
            self._make_room(RETRACT_TOKENS * len(kept))
            turn.computed = turn.cached = turn.end = 0
            turn.node = self.tree.root
            retracted.append(turn)
        if not self._make_room(len(kept)):
            raise RuntimeError("the last running turn has no memory for its next token")
        self._running, self._is_full = kept, False
        answered = sum(turn.answered for turn in kept) + RETRACT_TOKENS * len(kept)
        self._share = min(1.0, answered / (sum(turn.answer for turn in kept) + 1))
        self._waiting += retracted
        for turn in retracted:
            self._record_retraction(turn.sequence)

    def _advance(self, steps: int, duration: int) -> None:
        self.now_ps += duration
        self.steps += steps
        self.strides += 1

    def _end(self, prefilled: Iterable[_Turn], finished: list[_Turn]) -> None:
        """End a batch, in which some prompts were completed and some turns ended."""
        for turn in finished:
            self._release(turn)
        self._end_batch([turn.sequence for turn in prefilled], [t.sequence for t in finished])
