"""A model of vLLM v1's scheduler that a policy controls: it assembles batches and retains KV.

One step, as in `vllm/v1/core/sched/scheduler.py`: expired pins are released; running turns get a
slot for their next token in order of admission, and if no block is free the policy's victim is
preempted; unless a turn was preempted, waiting turns are admitted by rank until the head of the
queue does not fit (its whole prompt or its first chunk, see `servers.admission`), the batch is
full, or the step's token budget is used. So at most one turn's prompt is partly computed, that of
the turn admitted last, unless `--long-prefill` limits what a step computes of each, or layers keep
states and chunks end at block boundaries. Times are whole picoseconds.

If a turn has to preempt itself, the turns admitted after it skip the step. `Policy.displaced`
preempts before the step, as in the vLLM plug-in. Departures (docs/design/virtual-time.md): ended
turns, expired pins and loads count one step earlier than with vLLM's `AsyncScheduler`, which
schedules one step ahead; two turns that compute the same block share one copy.
"""

from __future__ import annotations

from servers.admission import Admission, Limits
from servers.policies.base import Policy
from servers.policies.runner import Emit, PolicyRunner
from servers.profiles import Profile
from servers.programs import PromptStart, blocks_to_repeat
from servers.sim.batching import Batch, RunningTurns
from servers.sim.kv import BlockOwner, DeviceKV
from servers.sim.reloads import BlockDemand, Reloads
from servers.sim.sequence import Phase, Sequence
from servers.sim.tiers import Tier


class Scheduler:
    """The waiting queue, the batch and the KV of one replica."""

    def __init__(
        self,
        policy: Policy,
        profile: Profile,
        limits: Limits,
        tiers: list[Tier],
        emit: Emit[Sequence] | None,
    ) -> None:
        self.limits = limits
        self.kv, self.running = self._build(profile)
        self.reloads = Reloads(tiers, self.kv, profile.block_tokens)
        self.runner: PolicyRunner[Sequence, BlockOwner] = PolicyRunner(
            policy, retain_blocks=self._retain_blocks, release_blocks=self.kv.release, emit=emit
        )
        self.sending: set[Sequence] = set()
        """Turns whose prompt is computed, and whose KV a decode engine has not fetched yet."""
        self._policy = policy
        self._block = profile.block_tokens
        self._kv_blocks = profile.kv_blocks
        self._kv_tokens = profile.kv_tokens(limits.step_tokens, profile.max_model_len)
        self._load_ps, self._load_token_ps = profile.load_ps, profile.load_token_ps
        self._step_tokens, self._max_num_seqs = limits.step_tokens, limits.max_num_seqs
        self._first_chunk = limits.admission == Admission.FIRST_CHUNK
        self._watermark = limits.blocks_left(profile.kv_blocks)
        self._context_tokens = self.running.context_tokens

    def _build(self, profile: Profile) -> tuple[DeviceKV, RunningTurns]:
        kv = DeviceKV(profile.kv_blocks)
        return kv, RunningTurns(kv, profile, self.limits.step_tokens)

    # Arrivals and ends --------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        if sequence.view.is_last is not False:
            blocks = blocks_to_repeat(sequence.view.prompt_tokens, self._block)
            sequence.prompt = PromptStart(blocks, sequence.owner.path)
        self.runner.arrived(sequence)
        self.runner.push(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Cancel a turn that waits, loads or runs."""
        runner, loaded = self.runner, self.reloads.loaded
        if sequence.view.id in runner.waiting:
            runner.waiting.remove(sequence.view.id)
        elif sequence in loaded:
            loaded.remove(sequence)
        elif sequence.phase != Phase.LOAD:
            self.running.remove(sequence, has_slot=False)
        self.kv.release(sequence.owner)
        sequence.close(runner.now_ps, error="aborted")
        runner.aborted(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End a turn whose last token is sampled and which has left the batch."""
        sequence.view.tools = sequence.submission.tools
        sequence.close(self.runner.now_ps)
        if sequence.sends_kv:
            self.sending.add(sequence)
            self.runner.record("sending", sequence)
        else:
            self._retain_or_release(sequence)

    def sent(self, sequence: Sequence) -> None:
        """End a turn whose KV has been sent. The policy learns of its end now."""
        self.sending.remove(sequence)
        self._retain_or_release(sequence)

    def _retain_or_release(self, sequence: Sequence) -> None:
        self.reloads.store(sequence)
        if not self.runner.finished(sequence, sequence.computed):
            self.kv.release(sequence.owner)

    def _retain_blocks(self, sequence: Sequence, whole_request: bool) -> tuple[BlockOwner, int]:
        if not whole_request:
            self.kv.release_blank(sequence.owner)
        return sequence.owner, sequence.owner.blocks

    # One step -----------------------------------------------------------------------------------

    def schedule(self) -> Batch:
        runner = self.runner
        if self.reloads.loading:
            self.reloads.finish_due(runner.now_ps)
        if runner.now_ps >= runner.steady_until_ps:
            runner.start_step(self._context_tokens)
        batch, fitting = Batch(), None
        if runner.displaces and len(runner.waiting):
            batch.may_displace = True
            if self.running.by_id and not self.reloads.loaded:
                fitting = self._displace(batch)
                if not batch.displaced:
                    runner.requeue_skipped()
        self.running.most_chunk = self._most_chunk()
        if not self.running.extend_all(batch):
            self._extend_one_by_one(batch)
        if not batch.preempted:
            self._admit_waiting(batch)
            if fitting is not None and fitting.view.id in runner.waiting:
                self._keep_free_for(fitting, batch)
        if runner.admits:
            runner.requeue_skipped()
        for sequence in batch.displaced:
            runner.push(sequence)
        return batch

    def next_change_ps(self) -> int | None:
        """Return the time of the next change without a client's request: the end of a load, a pin's
        expiry, or a change of rank."""
        change_ps, done_ps = self.runner.next_change_ps(), self.reloads.next_done_ps()
        if change_ps is None or (done_ps is not None and done_ps < change_ps):
            return done_ps
        return change_ps

    def _most_chunk(self) -> int:
        """Return how many tokens of one prompt the next step computes at most."""
        if not self.limits.long_prefill:
            return self._step_tokens
        turns = len(self.running.by_id) + len(self.runner.queued) + self.reloads.turns()
        return self.limits.most_chunk(self._step_tokens, turns)

    def _displace(self, batch: Batch) -> Sequence | None:
        """Preempt the turns that the policy selects until the next turn to admit fits. Return that
        turn if it fits anyway."""
        running, head = self.running, self._candidate()
        if head is None:
            batch.may_displace = False
            return None
        while running.by_id and not self._fits(head):
            running.refresh()
            worse = self._policy.displaced(head.view, running.views(), self.runner.now_s)
            if worse is None:
                batch.may_displace = bool(batch.displaced)
                return None
            displaced = running.by_id[worse.id]
            running.remove(displaced, has_slot=False)
            self._lose_kv(displaced)
            batch.displaced.append(displaced)
        return None if batch.displaced else head

    def _keep_free_for(self, head: Sequence, batch: Batch) -> None:
        """Let the batch run in a stride while the head of the queue, which waits, fits for sure.
        Running turns keep their blocks, and an eviction lowers a hit and its idle blocks alike."""
        batch.may_displace = False
        if self.reloads.tiers:
            batch.kept_free = self.reloads.most_needed(head, self.running.partial)
        else:
            budget = self._step_tokens - len(self.running.by_id)
            batch.kept_free = self._demand(head, min(budget, self.running.most_chunk)).needed
        batch.kept_free += self._watermark

    def _fits(self, head: Sequence) -> bool:
        """Return whether the head could be admitted if each running turn computed one token."""
        running = len(self.running.by_id)
        if running >= self._max_num_seqs:
            return False
        budget = min(self._step_tokens - running, self._most_chunk())
        return self._demand(head, budget).needed <= self._free_for_head()

    def _extend_one_by_one(self, batch: Batch) -> None:
        """Allocate the running turns' slots in order of admission, with preemptions. If a turn has
        to preempt itself, the turns admitted after it skip the step."""
        running = self.running
        running.refresh()
        batch.has_slot = set()
        for sequence in running.in_step():
            if sequence.view.id in batch.preempted:
                continue
            if sequence.joined_tick is None:
                chunk = running.next_chunk(sequence, self._budget_in_order(batch))
                if not chunk:
                    continue
                running.prepare_slots(sequence)
                needed = running.missing_blocks(sequence, chunk)
                if not self._make_room_for_running(sequence, needed, batch):
                    break
                running.compute(sequence, chunk, batch)
                continue
            if batch.chunks and self._budget_in_order(batch) <= 0:
                break
            running.prepare_slots(sequence)
            needed = running.missing_for_token(sequence)
            if not self._make_room_for_running(sequence, needed, batch):
                break
            running.take_slot(sequence, needed)
            batch.has_slot.add(sequence.view.id)
        for sequence, chunk in batch.chunks:
            running.hash_full(sequence, sequence.computed + chunk)
        running.skip_without_slot(batch, batch.has_slot)
        batch.has_slot = None

    def _make_room_for_running(self, sequence: Sequence, blocks: int, batch: Batch) -> bool:
        """Reclaim pins and preempt turns until `blocks` blocks are free; return False if the turn
        itself was preempted."""
        runner, running = self.runner, self.running.by_id
        while blocks > self.kv.free:
            turns = len(running) + len(self.sending)
            if runner.reclaim_for_running(sequence, turns, lambda: blocks - self.kv.free):
                continue
            victim = running[self._policy.victim(self.running.views(), runner.now_s).id]
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        return True

    def _budget_in_order(self, batch: Batch) -> int:
        """Return how many tokens the step may compute after the turns that were already scheduled
        in this step. Only if chunks end at block boundaries may a turn before a decode
        compute more tokens than in the step before, so that none is left for the decode."""
        slots = len(batch.has_slot) if batch.has_slot else 0
        return self._step_tokens - slots - batch.prompt_tokens()

    def _budget(self, batch: Batch) -> int:
        """Return how many prompt tokens the step may compute beside the batch."""
        return self._step_tokens - self.running.decodes.count - batch.prompt_tokens()

    # Admission ----------------------------------------------------------------------------------

    def _admit_waiting(self, batch: Batch) -> None:
        runner, running, loaded = self.runner, self.running, self.reloads.loaded
        head: Sequence | None = None
        while loaded or len(runner.waiting):
            left = self._budget(batch)
            if left <= 0 or len(running.by_id) >= self._max_num_seqs:
                return
            budget = min(left, running.most_chunk)
            if head is None:
                head = loaded[0] if loaded else self._candidate()
            if head is None:
                return
            if self._set_aside(head):
                head = None
                continue
            demand = self._demand(head, budget)
            if demand.waits:
                batch.single_step = True
                return
            if demand.needed <= self._free_for_head():
                self._admit(head, demand, budget, batch)
                head = None
            elif not self._make_room_for_head(head, budget, batch):
                if self._first_chunk and self.reloads.tiers and not demand.loads:
                    batch.head_may_load = demand.hit > 0
                return
            elif runner.needs_rerank(head):
                head = None

    def _set_aside(self, head: Sequence) -> bool:
        """Return True to leave out the head of the queue in this step, after removing it."""
        return False

    def _free_for_head(self) -> int:
        """Return the number of blocks that the next admission may take."""
        return self.kv.free - (self._watermark if self.running.by_id else 0)

    def _candidate(self) -> Sequence | None:
        """Return the waiting turn to admit next; None if the policy holds back all of them."""
        if not self.runner.admits:
            return self.runner.head() if len(self.runner.waiting) else None
        free_tokens = self._kv_tokens * self.kv.free // self._kv_blocks
        return self.runner.candidate(self._others(), free_tokens)

    def _others(self) -> int:
        """Return the number of turns that run, load or are being sent, and so will free blocks."""
        return len(self.running.by_id) + len(self.reloads.loading) + len(self.sending)

    def _demand(self, sequence: Sequence, budget: int) -> BlockDemand:
        """Return the demand of an admission in a step that may compute `budget` of its tokens."""
        if sequence.owner.blocks:
            total = self._prompt_blocks(sequence, sequence.computed + budget)
            return BlockDemand(0, [], total - sequence.owner.blocks)
        path, limit = sequence.owner.path, (sequence.target - 1) // self._block
        hit, idle = self.kv.lookup(path, limit)
        if sequence.fetch is not None:
            reserved = self.reloads.reserved_blocks(self.running.partial)
            return BlockDemand(hit, [], -(-sequence.target // self._block) - hit + idle + reserved)
        loads = self.reloads.find(path, limit, hit) if self.reloads.tiers else []
        if not loads:
            total = self._prompt_blocks(sequence, hit * self._block + budget)
            return BlockDemand(hit, loads, total - hit + idle)
        # The step computes no tokens of a turn whose KV is being loaded.
        loaded = hit + sum(blocks for _, blocks in loads)
        total = self._prompt_blocks(sequence, loaded * self._block)
        reserved = self.reloads.reserved_blocks(self.running.partial)
        return BlockDemand(hit, loads, total - hit + idle + reserved)

    def _prompt_blocks(self, sequence: Sequence, first_tokens: int) -> int:
        """Return the number of blocks of the part of the prompt that must fit for admission: the
        whole prompt, or only its first `first_tokens` tokens if the first chunk must fit."""
        tokens = sequence.target
        if self._first_chunk and first_tokens < tokens:
            tokens = first_tokens
        return -(-tokens // self._block)

    def _make_room_for_head(self, head: Sequence, budget: int, batch: Batch) -> bool:
        """Reclaim pins for the head of the queue, or else preempt a loaded turn; return False if
        the head has to wait."""
        others = self._others()
        if not self.runner.may_reclaim(others):
            return False
        if self.runner.reclaim_for_head(
            head, others, lambda: self._demand(head, budget).needed - self._free_for_head()
        ):
            return True
        if not others and len(self.reloads.loaded) > 1:
            self._preempt(self.reloads.loaded.pop(), batch)
            return True
        return False

    def _admit(self, sequence: Sequence, demand: BlockDemand, budget: int, batch: Batch) -> None:
        """Start a turn, or the load of its KV. Loaded turns were admitted before their load."""
        runner, loaded = self.runner, self.reloads.loaded
        if loaded and loaded[0] is sequence:
            self._start(loaded.popleft(), budget, batch)
            runner.record("loaded", sequence)
            return
        runner.waiting.remove(sequence.view.id)
        self.kv.take_hit(sequence.owner, demand.hit)
        sequence.computed = demand.hit * self._block
        loads = [(tier.name, blocks * self._block) for tier, blocks in demand.loads]
        if sequence.hits is None:
            sequence.hits = [("device", sequence.computed), *loads]
        if sequence.fetch is not None:
            self._fetch(sequence)
            return
        if not loads:
            self._start(sequence, budget, batch)
            runner.admitted(sequence, sequence.target, sequence.computed)
            return
        loaded_tokens = sum(tokens for _, tokens in loads)
        batch.load_ps += self._load_ps + loaded_tokens * self._load_token_ps
        self.reloads.start(sequence, demand.loads, runner.now_ps, batch.load_ps)
        runner.admitted(sequence, sequence.target, sequence.computed + loaded_tokens)
        for tier, tokens in loads:
            runner.record("loading", sequence, tier=tier, tokens=tokens)

    def _fetch(self, sequence: Sequence) -> None:
        """Start the transfer of the turn's KV from its prefill engine."""
        runner, on_device = self.runner, sequence.computed
        self.reloads.fetch(sequence, runner.now_ps)
        runner.admitted(sequence, sequence.target, sequence.target - 1)
        runner.record("loading", sequence, tier="prefill", tokens=sequence.target - on_device)

    def _start(self, sequence: Sequence, budget: int, batch: Batch) -> None:
        self.running.start(sequence, self.runner.now_ps)
        chunk = self.running.next_chunk(sequence, budget)
        self.running.compute(sequence, chunk, batch)
        self.running.hash_full(sequence, sequence.computed + chunk)

    # Preemption ---------------------------------------------------------------------------------

    def _preempt(self, victim: Sequence, batch: Batch) -> None:
        request_id = victim.view.id
        if request_id in self.running.by_id:
            has_slot = batch.has_slot is None or request_id in batch.has_slot
            if batch.has_slot is not None:
                batch.has_slot.discard(request_id)
            self.running.remove(victim, has_slot)
            batch.drop(victim)
        batch.preempted.add(request_id)
        self._lose_kv(victim)
        self.runner.push(victim)

    def _lose_kv(self, victim: Sequence) -> None:
        self.reloads.store(victim)
        self.kv.release(victim.owner)
        victim.computed = 0
        victim.preemptions += 1
        victim.enter(Phase.PREEMPTED, self.runner.now_ps)
        self.runner.preempted(victim)
