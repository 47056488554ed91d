"""One engine replica in virtual time: a clock around the scheduler.

In: turns with their submission times, a policy, a profile. Out: calls of `on_end` with each
finished or aborted turn, and of `on_event` with each engine event. Times are whole picoseconds, so
that a stride (steps between which no decision is possible) ends exactly when single steps would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from servers.admission import Limits
from servers.basics.errors import InvalidInput
from servers.policies.base import Policy
from servers.policies.runner import Emit
from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.sim.batching import Batch
from servers.sim.decodes import WindowDecodes
from servers.sim.due import DueTurns
from servers.sim.scheduler import Scheduler
from servers.sim.sequence import EngineUsage, Phase, Sequence, Submission, refuse_unfit
from servers.sim.settings import Offload
from servers.sim.speculative import SpeculativeDecodes, SpeculativeScheduler
from servers.sim.state_scheduler import StateScheduler
from servers.sim.strides import Pace, duration_ps, steps_until
from servers.sim.tiers import build_tiers
from servers.sim.window_scheduler import WindowScheduler

OnEnd = Callable[[Sequence], None]
OnEvent = Callable[[EventRecord], None]


class Engine:
    """Submit turns, then call `run`. `on_end` may submit more turns, for its time or later."""

    def __init__(
        self,
        policy: Policy,
        profile: Profile,
        limits: Limits,
        offload: Offload | None = None,
        *,
        on_end: OnEnd,
        on_event: OnEvent | None = None,
        strides: bool = True,
    ) -> None:
        """`strides`: compute all steps up to the next event at once, instead of one by one."""
        self.profile = profile
        emit = self._emit if on_event else None
        self.scheduler = self._build(policy, limits, offload, emit)
        self.now_ps = 0
        self.steps = 0
        """Number of computed batches."""
        self.strides = 0
        """Number of scheduler calls."""
        self._runner = self.scheduler.runner
        self._running = self.scheduler.running
        self._decodes = decodes = self.scheduler.running.decodes
        self._windows = decodes if isinstance(decodes, WindowDecodes) else None
        self._drafting = decodes if isinstance(decodes, SpeculativeDecodes) else None
        self._on_end = on_end
        self._on_event = on_event
        self._strides = strides
        self._tokens_ps: dict[int, int] = {}
        """`profile.tokens_ps` by number of tokens."""
        self._requests = 0
        self._due = DueTurns(profile.request_token_ps)
        """A sequence that has arrived is due for its abort, and one that is being sent for the end
        of that."""
        self._ended_programs: list[str] = []
        self._stopped = False
        self._batch: Batch | None = None
        """The batch that is being computed, in `_batch_steps` steps until `due_ps`."""
        self._batch_steps = 0
        self._batch_tokens = 0
        self._first_ps = self._increment_ps = 0
        """Duration of its first step, and by how much each of its steps is longer than the one
        before."""
        self.due_ps = 0
        self._ended_ps = self._known_ps = 0
        """When the last batch ended, and until when the next one knows of arrivals: until the
        last step began, if the next one was scheduled then. If a turn ended with it, until its
        end, so that waiting turns do not take what is freed before turns that have arrived."""

    def _build(
        self,
        policy: Policy,
        limits: Limits,
        offload: Offload | None,
        emit: Emit[Sequence] | None,
    ) -> Scheduler:
        profile = self.profile
        if offload and len(profile.kv_groups) > 1:
            raise InvalidInput(
                f"offload with {profile.model}: its sliding windows, chunks or states have KV "
                "groups of their own, which no offload tier stores here; use a profile with one "
                "group"
            )
        kind: type[Scheduler] = Scheduler
        if len(profile.kv_groups) > 1:
            kind = StateScheduler if profile.keeps_states else WindowScheduler
        if limits.speculate is not None:
            kind = SpeculativeScheduler
        return kind(policy, profile, limits, build_tiers(offload, profile), emit)

    @property
    def trees(self) -> int:
        """Number of trees of contents."""
        return 1

    def submit(self, submission: Submission, at_ps: int) -> Sequence:
        """Send a turn at `at_ps`. Raises InvalidInput if it could never run."""
        refuse_unfit(submission, self.profile, self.scheduler.limits.step_tokens)
        sequence = Sequence(submission, at_ps)
        self.deliver(sequence, at_ps)
        return sequence

    def deliver(self, sequence: Sequence, at_ps: int) -> None:
        """Send a turn that fits at `at_ps`."""
        self._due.send(at_ps, sequence)

    def abort(self, sequence: Sequence, at_ps: int) -> None:
        """Cancel a turn at `at_ps`, after its arrival. This has no effect once it has ended."""
        self._due.add(at_ps, sequence)

    def take_back(self, sequence: Sequence) -> None:
        """Forget a turn that has not arrived."""
        self._due.take_back(sequence)

    def free_sent(self, sequence: Sequence, at_ps: int) -> None:
        """End a turn that `sends_kv` at `at_ps`, when its KV has been sent."""
        self._due.add(at_ps, sequence)

    def next_event_ps(self, now_ps: int) -> int:
        """Return when it takes what was last sent to it: a turn, or the end of a program."""
        next_ps = None if self._ended_programs else self._due.next_ps
        return now_ps if next_ps is None else max(now_ps, next_ps)

    def usage(self) -> EngineUsage:
        tiers = {tier.name: tier.used for tier in self.scheduler.reloads.tiers}
        return EngineUsage(
            self._runner.now_s,
            self.scheduler.kv.used,
            self._runner.pins.blocks,
            len(self._runner.waiting),
            len(self._running),
            tiers.get("dram", 0),
            tiers.get("ssd", 0),
        )

    def end_program(self, program_id: str) -> None:
        """End a program that submitted no turn with `is_last`."""
        self._runner.end_program(program_id)

    def end_program_later(self, program_id: str) -> None:
        """End it when the next batch begins."""
        self._ended_programs.append(program_id)

    def stop(self) -> None:
        """End `run` early, after the current step. Turns that have not ended then are dropped."""
        self._stopped = True

    def run(self, programs: Iterable[object] = ()) -> None:
        """Run until every submitted turn has ended, or until `stop`. `programs` submits turns, as
        `DueTurns.begin` says."""
        self._due.begin(programs)
        while not self._stopped:
            if self.begin_batch():
                self.finish_batch()
            elif (wake_ps := self.wake_ps()) is None:
                return
            else:
                self.now_ps = wake_ps

    def begin_batch(self) -> bool:
        """Take the turns that have arrived, and begin to compute a batch, until `due_ps`. Return
        False if there is nothing to compute."""
        decodes = self._decodes
        known_ps = self._prepare_step()
        while True:
            self._due.take(known_ps, self._arrive_or_abort)
            batch = self.scheduler.schedule()
            self.strides += 1
            if decodes.count or batch.chunks:
                self._plan(batch)
                return True
            for sequence in batch.skipped:
                decodes.join(sequence)
            if batch.preempted or batch.displaced:
                continue
            if known_ps == self.now_ps:
                return False
            known_ps = self.now_ps

    def _prepare_step(self) -> int:
        """Set the scheduler's clock, and return until when its next step knows of arrivals."""
        self._runner.now_ps = self.now_ps
        for program_id in self._ended_programs:
            self._runner.end_program(program_id)
        self._ended_programs.clear()
        if self.profile.schedules_ahead and self._ended_ps == self.now_ps:
            return self._known_ps
        return self.now_ps

    def finish_batch(self) -> None:
        """Advance the clock to the end of the batch, and end the turns that are complete."""
        batch, steps = self._batch, self._batch_steps
        if batch is None:
            raise RuntimeError("no batch is being computed")
        self._batch = None
        if steps > 1:
            self._running.allocate_ahead(batch, steps)
        self._known_ps = self.now_ps + duration_ps(steps - 1, self._first_ps, self._increment_ps)
        self.now_ps = self._ended_ps = self.due_ps
        self.steps += steps
        self._runner.now_ps = self.now_ps
        self._collect(batch, steps)
        for sequence in batch.skipped:
            self._decodes.join(sequence)

    def interrupt(self, at_ps: int) -> None:
        """End the batch with its first step that ends at `at_ps` or later, for an event that was
        not known when it began."""
        if self._batch is not None and self._batch_steps > 1 and at_ps < self.due_ps:
            first_ps, increment_ps = self._first_ps, self._increment_ps
            self._batch_steps = steps = steps_until(
                at_ps - self.now_ps, self._batch_steps, first_ps, increment_ps
            )
            self.due_ps = self.now_ps + duration_ps(steps, first_ps, increment_ps)

    @property
    def pace(self) -> Pace:
        """How the batch that is being computed would go on by itself."""
        first_ps = self.due_ps - self.now_ps if self._batch_steps == 1 else self._first_ps
        return Pace(self._batch_steps, first_ps, self._increment_ps, self._batch_tokens)

    def keep_pace(self, pace: Pace) -> int:
        """Compute at most `pace.steps` steps of the batch with the durations of `pace`, which are
        no shorter, and end with the next event. Return their number."""
        steps = pace.steps
        if steps > 1:
            steps = self._steps_until_event(steps, pace.first_ps, pace.increment_ps)
        self._batch_steps = steps
        self._first_ps, self._increment_ps = pace.first_ps, pace.increment_ps
        self.due_ps = self.now_ps + duration_ps(steps, pace.first_ps, pace.increment_ps)
        return steps

    def used_blocks_at(self, at_ps: int) -> int:
        """Return the blocks in use at a time before `due_ps`, or now."""
        used = self.scheduler.kv.used
        if self._batch is None or self._batch_steps == 1:
            return used
        steps = steps_until(
            at_ps - self.now_ps, self._batch_steps, self._first_ps, self._increment_ps
        )
        return used + self._running.blocks_ahead(self._batch, steps)

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being computed."""
        return self._batch is not None

    def wake_ps(self) -> int | None:
        """Return when an idle engine has work: at the next arrival or completed load; None: never.
        An idle vLLM runs no steps, so pins do not expire in the meantime. Raises RuntimeError."""
        reloads = self.scheduler.reloads
        next_ps = self._due.next_or(reloads.loading[0][0] if reloads.loading else None)
        if next_ps is not None:
            return max(self.now_ps, next_ps)
        if (len(self._runner.waiting) or reloads.loaded) and not self.scheduler.sending:
            raise RuntimeError("turns wait, no turn runs, and nothing will free memory")
        return None

    def _arrive_or_abort(self, sequence: Sequence) -> None:
        if not sequence.arrived:
            sequence.arrived = True
            self._requests += 1
            sequence.view.id = self._requests
            sequence.view.program_id = sequence.submission.program_id or f"turn {self._requests}"
            self.scheduler.add(sequence)
        elif sequence.finished_ps is None:
            self.scheduler.abort(sequence)
            self._on_end(sequence)
        elif sequence in self.scheduler.sending:
            self.scheduler.sent(sequence)

    # Steps --------------------------------------------------------------------------------------

    def _plan(self, batch: Batch) -> None:
        """Begin the batch, with as many steps as possible without a decision in between."""
        profile, decodes = self.profile, self._decodes
        tokens, pairs = decodes.count, 0
        for sequence, n in batch.chunks:
            tokens += n
            pairs += n * sequence.computed + n * (n + 1) // 2
        sequences = decodes.count + len(batch.chunks)
        tokens = profile.padded(tokens)
        tokens_ps = self._tokens_ps.get(tokens)
        if tokens_ps is None:
            tokens_ps = self._tokens_ps[tokens] = profile.tokens_ps(tokens)
        first_ps = tokens_ps + profile.turns_ps(sequences, decodes.context, pairs)
        chunk = batch.chunks[0][1] if batch.chunks else 0
        increment_ps = profile.increment_ps(decodes.count, chunk)
        steps = self._most_steps(batch)
        if self._windows is not None:
            window_ps, more_ps = self._windows.window_ps(batch.chunks)
            first_ps, increment_ps = first_ps + window_ps, increment_ps + more_ps
            steps = self._windows.window_steps(batch.chunks, steps)
        if self._drafting is not None:
            first_ps = self._drafting.batch_ps(profile, batch.chunks)
        if steps > 1:
            steps = self._steps_until_event(steps, first_ps, increment_ps)
        self._batch, self._batch_steps, self._batch_tokens = batch, steps, tokens
        self._first_ps, self._increment_ps = first_ps, increment_ps
        self.due_ps = self.now_ps + duration_ps(steps, first_ps, increment_ps) + batch.load_ps

    def _collect(self, batch: Batch, steps: int) -> None:
        """Record the progress of `steps` computed steps, and end the complete turns."""
        running, decodes, now_ps = self._running, self._decodes, self.now_ps
        decodes.advance(steps)
        done = decodes.pop_finished()
        for sequence in done:
            running.settle(sequence, has_slot=False)
        for sequence, chunk in batch.chunks:
            sequence.computed += chunk * steps
            if sequence.computed < sequence.target:
                continue
            sequence.view.output_tokens += 1
            if sequence.first_token_ps is None:
                sequence.first_token_ps = now_ps
            sequence.enter(Phase.DECODE, now_ps)
            if sequence.view.output_tokens == sequence.submission.output_tokens:
                done.append(sequence)
            else:
                decodes.join(sequence)
        if batch.chunks and len(done) > 1:
            done.sort(key=lambda sequence: sequence.admission)
        if done:
            self._known_ps = now_ps
        for sequence in done:
            del running.by_id[sequence.view.id]
            self.scheduler.finish(sequence)
            self._on_end(sequence)

    def _most_steps(self, batch: Batch) -> int:
        """Return the number of steps in which the batch does not change: no turn finishes before
        the last step, the partial turn computes a full chunk in each and leaves no tokens for an
        admission, the free blocks suffice, and no allocated block lets the head of the queue load
        its KV or displace a turn."""
        decodes = self._decodes
        if not self._strides or batch.preempted or batch.may_displace or len(batch.chunks) > 1:
            return 1
        if batch.single_step or batch.load_ps or len(self._running.partial) > 1:
            return 1
        most = decodes.steps_to_finish()
        if batch.chunks:
            sequence, chunk = batch.chunks[0]
            budget = self.scheduler.limits.step_tokens - decodes.count
            waits = len(self._runner.waiting) or self.scheduler.reloads.loaded
            if chunk < min(budget, budget if waits else self._running.most_chunk):
                return 1
            chunks = max(1, (sequence.target - sequence.computed - 1) // chunk)
            most = chunks if most is None else min(most, chunks)
        if most is None:
            raise RuntimeError("a batch without members has no steps")
        free = 0 if batch.head_may_load else self.scheduler.kv.free - batch.kept_free
        running = self._running
        per_decode = (most // self.profile.block_tokens + 1) * len(self.profile.kv_groups)
        if decodes.count * per_decode < free and not batch.chunks:
            return most
        if running.blocks_ahead(batch, most) <= free:
            return most
        fits = 1
        while most - fits > 1:
            middle = (fits + most) // 2
            if running.blocks_ahead(batch, middle) <= free:
                fits = middle
            else:
                most = middle
        return fits

    def _steps_until_event(self, most: int, first_ps: int, increment_ps: int) -> int:
        """Return the smallest number of steps that reach the next event, but at most `most`."""
        due_ps = self._due.next_or(self.scheduler.next_change_ps())
        if due_ps is None:
            return most
        return steps_until(due_ps - self.now_ps, most, first_ps, increment_ps)

    def _emit(self, t_s: float, event: str, sequence: Sequence, fields: dict[str, Any]) -> None:
        if self._on_event is not None:
            program_id, turn = sequence.view.program_id, sequence.view.index
            self._on_event(
                EventRecord(t=t_s, event=event, program_id=program_id, turn=turn, **fields)
            )
