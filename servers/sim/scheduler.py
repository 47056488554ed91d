"""vLLM v1's scheduler around a policy: who is in the next batch, and whose KV stays.

One step, as in `vllm/v1/core/sched/scheduler.py`: expired pins go; running turns get their next
token's slot in order of admission, and where none is free the policy's victim loses its KV; unless
somebody was preempted, waiting turns are admitted by rank until the head does not fit (its whole
prompt must), the batch is full, or the step's tokens are spent. So at most one turn is halfway
through its prompt, and it stands last. Times are whole picoseconds.

Where a turn loses its own KV, those behind it sit the step out. `Policy.displaced` preempts before
the step, as our plug-in does. Departures (docs/design/fidelity.md): steps follow one another,
while vLLM's
`AsyncScheduler` on a GPU plans a step ahead; one copy of a block that two turns computed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from servers.errors import InvalidInput
from servers.policies.base import Oracle, Pin, Policy, Retention
from servers.profiles import PS_PER_S, Profile
from servers.ranked_queue import Held, Pins, RankedQueue
from servers.sim.decodes import Decodes
from servers.sim.kv import DeviceKV, Holder
from servers.sim.sequence import Phase, Sequence
from servers.sim.tiers import Tier


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's `max_num_seqs` and `max_num_batched_tokens`."""

    max_num_seqs: int = 256
    step_tokens: int = 2048

    def __post_init__(self) -> None:
        for option, said in (
            ("--max-num-seqs", self.max_num_seqs),
            ("--step-tokens", self.step_tokens),
        ):
            if said < 1:
                raise InvalidInput(f"{option} {said}: must be at least 1")
        if self.step_tokens < self.max_num_seqs:
            raise InvalidInput(
                f"--step-tokens {self.step_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}: each running turn needs a token per step; change one of them"
            )


@dataclass(slots=True)
class Batch:
    """What the next step computes: one token of each decode, and these prompt chunks."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: set[int] = field(default_factory=set)
    """Requests that lost their KV while it was put together."""
    granted: set[int] | None = None
    """Decodes that have their slot for this step; None: all."""
    aside: list[Sequence] = field(default_factory=list)
    """Displaced before it: queued again after it."""
    may_displace: bool = False
    """The head of the queue fitted before it, somebody had to go, or nobody was asked: the next
    step asks again."""
    skipped: list[Sequence] = field(default_factory=list)
    """Decodes that sit it out; `Decodes.join` takes them back after it."""

    def drop(self, sequence: Sequence) -> None:
        self.chunks = [(s, n) for s, n in self.chunks if s is not sequence]


class Fit(NamedTuple):
    """What admitting a waiting turn takes, in blocks."""

    hit: int
    """Depth of its prefix on the device."""
    loads: list[tuple[Tier, int]]
    """What else the tiers have of it."""
    needed: int
    """How far `free` must reach."""


Emit = Callable[..., None]


class Scheduler:
    """Queue, batch and KV of one replica."""

    def __init__(
        self, policy: Policy, profile: Profile, limits: Limits, tiers: list[Tier], emit: Emit | None
    ) -> None:
        self.policy = policy
        self.limits = limits
        self.tiers = tiers
        self.now_ps = 0
        self.now_s = 0.0
        self.block = profile.block_tokens
        self.kv = DeviceKV(profile.kv_blocks)
        self.pins: Pins[Holder] = Pins()
        self.waiting: RankedQueue[Sequence] = RankedQueue()
        self.running: dict[int, Sequence] = {}
        """By request id, in order of admission."""
        self.decodes = Decodes(self.block)
        self.partial: Sequence | None = None
        """The one turn halfway through its prompt."""
        self.loading: list[tuple[int, int, Sequence]] = []
        """Turns whose KV is on its way from a tier, by the time it is there."""
        self.loaded: deque[Sequence] = deque()
        self.pool = Holder(())
        """Blocks of the decodes that are not settled to one of them yet."""
        self._emit = emit
        self._admissions = 0
        self._programs: dict[str, tuple[float, int]] = {}
        """Arrival and turns so far of each program that has not ended."""
        self._oracle = policy if isinstance(policy, Oracle) else None
        self._displaces = type(policy).displaced is not Policy.displaced
        self._wakes = type(policy).wake_s is not Policy.wake_s
        self._wake_ps: int | None = None

    def set_clock(self, now_ps: int) -> None:
        self.now_ps = now_ps
        self.now_s = now_ps / PS_PER_S

    # Arrivals and ends --------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        view = sequence.view
        arrival_s, view.index = self._programs.get(view.program_id, (view.arrival_s, 0))
        view.program_arrival_s = arrival_s
        self._programs[view.program_id] = (arrival_s, view.index + 1)
        view.pinned = sequence.pinned_hit = view.program_id in self.pins
        if self._oracle is not None and sequence.submission.future is not None:
            self._oracle.foresee(view, sequence.submission.future)
        self.policy.arrived(view, self.now_s)
        self._enqueue(sequence)
        if self._emit:
            self._emit("arrival", view)

    def abort(self, sequence: Sequence) -> None:
        """Give a turn up wherever it is, unless it has ended."""
        if sequence.view.id in self.waiting:
            self._dequeue(sequence)
        elif sequence in self.loaded:
            self.loaded.remove(sequence)
        elif sequence.phase is not Phase.LOAD:
            self._leave_batch(sequence, granted=False)
        self.kv.release(sequence.holder)
        sequence.close(self.now_ps, error="aborted")
        self.policy.aborted(sequence.view, self.now_s)
        if sequence.view.is_last:
            self.end_program(sequence.view.program_id)
        if self._emit:
            self._emit("aborted", sequence.view)

    def finish(self, sequence: Sequence) -> None:
        """Its last token is out, and it has left the batch."""
        view = sequence.view
        view.tools = sequence.submission.tools
        sequence.close(self.now_ps)
        self._store(sequence)
        retention = self.policy.finished(view, self.now_s)
        if not isinstance(retention, Retention):
            raise TypeError(f"{self.policy.name}.finished returned {retention!r}, no Retention")
        if self._emit:
            self._emit("finished", view)
        self._unpin(view.program_id, "replaced")
        if retention.kind == "pin" and not view.is_last and sequence.submission.program_id:
            if not retention.whole_request:
                self.kv.release_blank(sequence.holder)
            self._pin(sequence, retention.ttl_s)
            if self._emit:
                blocks = sequence.holder.blocks
                ttl_s = None if math.isinf(retention.ttl_s) else retention.ttl_s
                self._emit("pinned", view, ttl_s=ttl_s, blocks=blocks, why=dict(retention.why))
        else:
            self.kv.release(sequence.holder)
        if view.is_last or not sequence.submission.program_id:
            self.end_program(view.program_id)

    def end_program(self, program_id: str) -> None:
        """No more turns of the program will come."""
        if self._programs.pop(program_id, None) is not None:
            self.policy.program_ended(program_id, self.now_s)
        self._unpin(program_id, "ended")

    def _enqueue(self, sequence: Sequence) -> None:
        self.pins.returned(sequence.view.program_id)
        self._rank([sequence])

    def _dequeue(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence.view.id)
        self.pins.left(sequence.view.program_id)

    def _rank(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            view = sequence.view
            self.waiting.push(view.id, self.policy.rank(view, self.now_s), sequence)

    def _store(self, sequence: Sequence) -> None:
        for tier in self.tiers:
            tier.store(sequence.holder.path, sequence.holder.depth)

    # Pins ---------------------------------------------------------------------------------------

    def _pin(self, sequence: Sequence, ttl_s: float) -> None:
        expires_s = self.now_s + ttl_s
        pin = Pin(sequence.view, sequence.computed, self.now_s, expires_s)
        expires = None if math.isinf(ttl_s) else self.now_ps + math.ceil(ttl_s * PS_PER_S)
        self.pins.add(Held(pin, sequence.holder, sequence.holder.blocks, expires))

    def _unpin(self, program_id: str, reason: str) -> bool:
        held = self.pins.pop(program_id)
        if held is None:
            return False
        self.kv.release(held.holder)
        if self._emit:
            self._emit("unpinned", held.pin.request, reason=reason)
        if self.pins.is_waiting(program_id):
            deprived = [s for s in self.waiting if s.view.program_id == program_id]
            for sequence in deprived:
                sequence.view.pinned = False
            self._rank(deprived)
        return True

    def _release_due_pins(self) -> None:
        if not len(self.pins):
            return
        for program_id in self.pins.expired(self.now_ps):
            self._unpin(program_id, "expired")
        if self.policy.reviews_pins:
            batch_tokens = self.decodes.context - self.decodes.count
            batch_tokens += self.partial.computed if self.partial else 0
            pins = [held.pin for held in self.pins.held()]
            for pin in list(self.policy.review(pins, batch_tokens, self.now_s)):
                self._unpin(pin.program_id, "review")

    def _reclaim(self, missing: Callable[[], int], spare: str | None = None) -> bool:
        """Unpin in the policy's order until nothing is missing, sparing one program."""
        held = [h for h in self.pins.held() if h.pin.program_id != spare]
        if not held or sum(h.blocks for h in held) < missing():
            return False
        for pin in list(self.policy.reclaim([h.pin for h in held], self.now_s)):
            self._unpin(pin.program_id, "pressure")
            if missing() <= 0:
                break
        return True

    # One step -----------------------------------------------------------------------------------

    def schedule(self) -> Batch:
        while self.loading and self.loading[0][0] <= self.now_ps:
            self._finish_load(heapq.heappop(self.loading)[2])
        self._release_due_pins()
        if self._wakes:
            self._wake()
        batch = Batch()
        if self._displaces and len(self.waiting):
            if self.running and not self.loaded:
                self._displace(batch)
            else:
                batch.may_displace = True
        self._extend_running(batch)
        if not batch.preempted:
            self._admit(batch)
        self._rank(batch.aside)
        return batch

    def next_change_ps(self) -> int | None:
        """When something changes that no client brings about: a load, an expiry, a rank."""
        due_ps = self.pins.next_expiry()
        if self._wake_ps is not None and (due_ps is None or self._wake_ps < due_ps):
            due_ps = self._wake_ps
        if self.loading and (due_ps is None or self.loading[0][0] < due_ps):
            due_ps = self.loading[0][0]
        return due_ps

    def _wake(self) -> None:
        if self._wake_ps is not None and self._wake_ps <= self.now_ps:
            self._rank(list(self.waiting))
        wake_s = self.policy.wake_s(self.now_s)
        if wake_s is None or math.isinf(wake_s):
            self._wake_ps = None
        else:
            self._wake_ps = max(math.ceil(wake_s * PS_PER_S), self.now_ps + 1)

    def _displace(self, batch: Batch) -> None:
        """Preempt for the head of the queue whom the policy names, until the head fits."""
        head = self.waiting.peek()
        batch.may_displace = True
        while self.running and not self._fits(head):
            self._refresh()
            views = [s.view for s in self.running.values()]
            worse = self.policy.displaced(head.view, views, self.now_s)
            if worse is None:
                batch.may_displace = bool(batch.aside)
                return
            loser = self.running[worse.id]
            self._leave_batch(loser, granted=False)
            self._lose_kv(loser)
            self.pins.returned(worse.program_id)
            batch.aside.append(loser)

    def _fits(self, head: Sequence) -> bool:
        room = len(self.running) < self.limits.max_num_seqs
        return room and self._fit(head).needed <= self.kv.free

    def _extend_running(self, batch: Batch) -> None:
        """A slot for the next token of each decode, and the next chunk of the partial turn."""
        needed = self.decodes.blocks_needed(1)
        partial = self.partial
        if partial is None:
            chunk = 0
        else:
            chunk = min(
                partial.target - partial.computed, self.limits.step_tokens - self.decodes.count
            )
        if needed + (self._missing(partial, chunk) if partial else 0) > self.kv.free:
            self._extend_one_by_one(batch)
            return
        if needed:
            self.kv.allocate(self.pool, needed)
        if partial is not None:
            self._compute(partial, chunk, batch)

    def _extend_one_by_one(self, batch: Batch) -> None:
        self._refresh()
        batch.granted = set()
        for sequence in list(self.running.values()):
            if sequence.view.id in batch.preempted:
                continue
            if sequence is self.partial:
                room = self.limits.step_tokens - self.decodes.count
                chunk = min(sequence.target - sequence.computed, room)
                if not self._make_room(sequence, self._missing(sequence, chunk), batch):
                    break
                self._compute(sequence, chunk, batch)
                continue
            opens = int(self.decodes.opens_block(sequence))
            if not self._make_room(sequence, opens, batch):
                break
            self.kv.allocate(self.pool, opens)
            batch.granted.add(sequence.view.id)
        self._skip_the_rest(batch, batch.granted)
        batch.granted = None

    def _skip_the_rest(self, batch: Batch, granted: set[int]) -> None:
        for sequence in self.running.values():
            if sequence.joined_tick is not None and sequence.view.id not in granted:
                self.decodes.leave(sequence)
                self.settle(sequence, granted=False)
                batch.skipped.append(sequence)

    def _make_room(self, needy: Sequence, blocks: int, batch: Batch) -> bool:
        """Preempt and unpin until so many blocks are free; False if that cost `needy` its own."""
        while blocks > self.kv.free:
            pins_give_way = self.policy.reclaim_when == "pressure" or len(self.running) == 1
            if pins_give_way and self._reclaim(lambda: blocks - self.kv.free):
                continue
            views = [s.view for s in self.running.values()]
            victim = self.running[self.policy.victim(views, self.now_s).id]
            self._preempt(victim, batch)
            if victim is needy:
                return False
        return True

    def _admit(self, batch: Batch) -> None:
        while self.loaded or len(self.waiting):
            budget = self.limits.step_tokens - self.decodes.count
            for _, chunk in batch.chunks:
                budget -= chunk
            if budget <= 0:
                return
            head = self.loaded[0] if self.loaded else self.waiting.peek()
            fit = self._fit(head)
            full = len(self.running) >= self.limits.max_num_seqs
            if full or fit.needed > self.kv.free:
                if not self._give_way(head, full, batch):
                    return
            else:
                self._take_in(head, fit, budget, batch)

    def _fit(self, sequence: Sequence) -> Fit:
        total = -(-sequence.target // self.block)
        if sequence.holder.blocks:
            return Fit(0, [], total - sequence.holder.blocks)
        path, limit = sequence.holder.path, (sequence.target - 1) // self.block
        hit, idle = self.kv.lookup(path, limit)
        needed = total - hit + idle
        if not self.tiers:
            return Fit(hit, [], needed)
        reach, loads = hit, []
        for tier in self.tiers:
            stored = tier.lookup(path, limit)
            if stored > reach:
                loads.append((tier, stored - reach))
                reach = stored
        if loads:
            # A load holds its blocks without making progress: it must not take what others need
            # to get through their prompts.
            ahead = [s for _, _, s in self.loading if s.finished_ps is None] + list(self.loaded)
            ahead += [self.partial] if self.partial else []
            needed += sum(-(-s.target // self.block) - s.holder.blocks for s in ahead)
        return Fit(hit, loads, needed)

    def _give_way(self, head: Sequence, full: bool, batch: Batch) -> bool:
        """Make room for the head of the queue, which does not fit; False if it has to wait."""
        if full:
            return False
        stuck = not self.running and not self.loading
        own = head.view.program_id
        if stuck or self.policy.reclaim_when == "pressure":

            def missing() -> int:
                return self._fit(head).needed - self.kv.free

            if self._reclaim(missing, spare=own):
                return True
        if not stuck:
            return False
        # Nothing else can free memory: whatever else holds KV has to go.
        if self._unpin(own, "pressure") or self._reclaim(lambda: 0):
            return True
        if len(self.loaded) > 1:
            self._preempt(self.loaded.pop(), batch)
            return True
        return False

    def _take_in(self, sequence: Sequence, fit: Fit, budget: int, batch: Batch) -> None:
        """Admit a turn: it runs, or its KV is loaded first."""
        view = sequence.view
        if self.loaded and self.loaded[0] is sequence:
            self._start(self.loaded.popleft(), budget, batch)
            return
        self._dequeue(sequence)
        self.kv.take_hit(sequence.holder, fit.hit)
        sequence.computed = fit.hit * self.block
        reach = fit.hit + sum(blocks for _, blocks in fit.loads)
        self.policy.scheduled(view, self.now_s, reach * self.block)
        if self._emit:
            event = "evicted_to_running" if view.preempted else "waiting_to_running"
            lengths = {"prompt_length": sequence.target, "hit_length": reach * self.block}
            self._emit(event, view, **lengths)
        if sequence.hits is None:
            sequence.hits = [("device", sequence.computed)]
            sequence.hits += [(tier.name, n * self.block) for tier, n in fit.loads]
        if fit.loads:
            self._load(sequence, fit.loads)
        else:
            self._start(sequence, budget, batch)
        # Only now: what its own pin held besides the hit is no room for it.
        self._unpin(view.program_id, "reused")
        view.pinned = view.preempted = False

    def _start(self, sequence: Sequence, budget: int, batch: Batch) -> None:
        sequence.admit(self.now_ps)
        self._admissions += 1
        sequence.admission = self._admissions
        self.running[sequence.view.id] = sequence
        self._compute(sequence, min(sequence.target - sequence.computed, budget), batch)

    def _load(self, sequence: Sequence, loads: list[tuple[Tier, int]]) -> None:
        done = self.now_ps
        for tier, blocks in loads:
            tier.touch(sequence.holder.path, sequence.holder.depth + blocks)
            done = max(done, tier.read(blocks, self.now_ps))
            self.kv.allocate(sequence.holder, blocks)
            if self._emit:
                self._emit("loading", sequence.view, tier=tier.name, tokens=blocks * self.block)
        sequence.enter(Phase.LOAD, self.now_ps)
        heapq.heappush(self.loading, (done, sequence.view.id, sequence))

    def _finish_load(self, sequence: Sequence) -> None:
        if sequence.finished_ps is not None:
            return
        self.kv.commit(sequence.holder, sequence.holder.blocks)
        sequence.computed = sequence.holder.depth * self.block
        self.loaded.append(sequence)
        if self._emit:
            self._emit("loaded", sequence.view)

    def _compute(self, sequence: Sequence, chunk: int, batch: Batch) -> None:
        """Put a chunk of its prompt into the batch."""
        self.extend(sequence, sequence.computed + chunk)
        batch.chunks.append((sequence, chunk))
        self.partial = sequence if sequence.computed + chunk < sequence.target else None

    # Blocks and batch ---------------------------------------------------------------------------

    def _missing(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that computing so many more tokens takes."""
        return max(0, -(-(sequence.computed + tokens) // self.block) - sequence.holder.blocks)

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Hold blocks for so many tokens, and hash the full ones."""
        missing = -(-tokens // self.block) - sequence.holder.blocks
        if missing > 0:
            self.kv.allocate(sequence.holder, missing)
        self.kv.commit(sequence.holder, tokens // self.block)

    def settle(self, sequence: Sequence, granted: bool) -> None:
        """Out of the decodes' pool, give a turn that left them the blocks that are its own.
        `granted`: its slot for the coming step is among them."""
        own = -(-(sequence.computed + granted) // self.block) - sequence.holder.blocks
        self.pool.blank -= own
        sequence.holder.blank += own
        self.kv.commit(sequence.holder, sequence.computed // self.block)

    def _refresh(self) -> None:
        for sequence in self.running.values():
            self.decodes.refresh(sequence)

    def _leave_batch(self, sequence: Sequence, granted: bool) -> None:
        del self.running[sequence.view.id]
        if sequence is self.partial:
            self.partial = None
        if sequence.joined_tick is not None:
            self.decodes.leave(sequence)
            self.settle(sequence, granted)

    def _preempt(self, victim: Sequence, batch: Batch) -> None:
        view = victim.view
        if view.id in self.running:
            granted = batch.granted is None or view.id in batch.granted
            self._leave_batch(victim, granted)
            batch.drop(victim)
        batch.preempted.add(view.id)
        self._lose_kv(victim)
        self._enqueue(victim)

    def _lose_kv(self, victim: Sequence) -> None:
        view = victim.view
        self._store(victim)
        self.kv.release(victim.holder)
        victim.computed = 0
        victim.preemptions += 1
        victim.enter(Phase.PREEMPTED, self.now_ps)
        view.preempted = True
        view.pinned = view.program_id in self.pins
        self.policy.preempted(view, self.now_s)
        if self._emit:
            self._emit("preempted", view)
