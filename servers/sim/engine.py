"""One engine replica in virtual time: a clock around the scheduler.

In: turns submitted with a time, a policy, a profile. Out: each ended turn handed to `on_end`,
engine events to `on_event`. Time is whole picoseconds and every step time a sum of integers, so
that a stride (steps between which nothing is decided) ends exactly where single steps would.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from servers.policies.base import Policy, Request
from servers.profiles import Profile
from servers.records import EventRecord
from servers.sim.scheduler import Batch, Limits, Scheduler
from servers.sim.sequence import Phase, Sequence, Submission, Usage, refuse_unfit
from servers.sim.strides import lasts, steps_until
from servers.sim.tiers import Offload, build_tiers

OnEnd = Callable[[Sequence], None]
OnEvent = Callable[[EventRecord], None]


class Engine:
    """Submit turns, then `run`; `on_end` may submit more, not before its own time."""

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
        self.profile = profile
        self.scheduler = Scheduler(
            policy,
            profile,
            limits,
            build_tiers(offload, profile),
            self._emit if on_event else None,
        )
        self.now_ps = 0
        self.steps = 0
        """Batches computed."""
        self.strides = 0
        """Times the scheduler ran."""
        self._on_end = on_end
        self._on_event = on_event
        self._strides = strides
        self._requests = 0
        self._events: list[tuple[int, bool, int, Sequence]] = []
        """Arrivals by time, first turns of `_programs` before others; a sequence that has arrived
        already is aborted."""
        self._programs: Iterator[object] = iter(())
        self._begins = False
        """What is submitted now is a first turn of these."""
        self._serial = 0

    def submit(self, submission: Submission, at_ps: int) -> Sequence:
        """Queue a turn for arrival at `at_ps`. ValueError if it could never run."""
        refuse_unfit(submission, self.profile)
        sequence = Sequence(submission, at_ps)
        self._push(at_ps, sequence)
        return sequence

    def abort(self, sequence: Sequence, at_ps: int) -> None:
        """The client gives a turn up at `at_ps`, after its arrival; no effect if it has ended."""
        self._push(at_ps, sequence)

    def usage(self) -> Usage:
        scheduler = self.scheduler
        return Usage(
            scheduler.now_s,
            scheduler.kv.used,
            scheduler.pins.blocks,
            len(scheduler.waiting),
            len(scheduler.running),
            **{f"{tier.name}_blocks": tier.used for tier in scheduler.tiers},
        )

    def end_program(self, program_id: str) -> None:
        """No more turns of the program will come; needed where no turn was said to be its last."""
        self.scheduler.end_program(program_id)

    def run(self, programs: Iterable[object] = ()) -> None:
        """Until every submitted turn has ended. Each item of `programs` submits a first turn when
        it is asked for, which is once the one before has arrived; they come in order of time."""
        scheduler = self.scheduler
        self._programs = iter(programs)
        self._begin_next()
        while True:
            scheduler.set_clock(self.now_ps)
            while self._events and self._events[0][0] <= self.now_ps:
                _, later, _, sequence = heapq.heappop(self._events)
                self._take(sequence)
                if not later:
                    self._begin_next()
            batch = scheduler.schedule()
            self.strides += 1
            lost = batch.preempted or batch.aside
            if scheduler.decodes.count or batch.chunks:
                self._compute(batch)
            elif not lost and not self._skip_idle_time():
                return
            for sequence in batch.skipped:
                scheduler.decodes.join(sequence)

    def _begin_next(self) -> None:
        self._begins = True
        next(self._programs, None)
        self._begins = False

    def _push(self, at_ps: int, sequence: Sequence) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at_ps, not self._begins, self._serial, sequence))

    def _take(self, sequence: Sequence) -> None:
        if not sequence.arrived:
            sequence.arrived = True
            self._requests += 1
            sequence.view.id = self._requests
            sequence.view.program_id = sequence.submission.program_id or f"turn {self._requests}"
            self.scheduler.add(sequence)
        elif sequence.finished_ps is None:
            self.scheduler.abort(sequence)
            self._on_end(sequence)

    def _skip_idle_time(self) -> bool:
        """To the next arrival or load; an idle vLLM runs no step, so nothing else happens."""
        loading = self.scheduler.loading
        times = [queue[0][0] for queue in (self._events, loading) if queue]
        if not times:
            if len(self.scheduler.waiting) or self.scheduler.loaded:
                raise RuntimeError("turns wait, nothing runs and nothing will free memory")
            return False
        self.now_ps = max(self.now_ps, min(times))
        return True

    def _compute(self, batch: Batch) -> None:
        """Run the batch for as many steps as nothing is decided in between."""
        profile, decodes = self.profile, self.scheduler.decodes
        tokens, pairs = decodes.count, 0
        for sequence, n in batch.chunks:
            tokens += n
            pairs += n * sequence.computed + n * (n + 1) // 2
        sequences = decodes.count + len(batch.chunks)
        first_ps = profile.step_ps(tokens, sequences, decodes.context, pairs)
        chunk = batch.chunks[0][1] if batch.chunks else 0
        more_ps = decodes.count * profile.context_ps + chunk * chunk * profile.pair_ps
        steps = self._most_steps(batch)
        if steps > 1:
            steps = self._steps_until_event(steps, first_ps, more_ps)
            self._allocate_ahead(batch, steps)
        self.now_ps += lasts(steps, first_ps, more_ps)
        self.steps += steps
        self.scheduler.set_clock(self.now_ps)
        self._collect(batch, steps)

    def _collect(self, batch: Batch, steps: int) -> None:
        scheduler, now_ps = self.scheduler, self.now_ps
        scheduler.decodes.advance(steps)
        done = scheduler.decodes.pop_finished()
        for sequence in done:
            scheduler.settle(sequence, granted=False)
        for sequence, chunk in batch.chunks:
            sequence.computed += chunk * steps
            if sequence.computed < sequence.target:
                continue
            sequence.view.output_tokens += 1
            if sequence.first_token_ps is None:
                sequence.first_token_ps = now_ps
            sequence.enter(Phase.DECODE, now_ps)
            if sequence.view.output_tokens == sequence.wanted:
                done.append(sequence)
            else:
                scheduler.decodes.join(sequence)
        for sequence in done:
            del scheduler.running[sequence.view.id]
            scheduler.finish(sequence)
            self._on_end(sequence)

    def _most_steps(self, batch: Batch) -> int:
        """Steps that leave the batch as it is: nobody finishes before the last one, the partial
        turn takes its full chunk in each, and there are blocks for all."""
        scheduler, decodes = self.scheduler, self.scheduler.decodes
        if not self._strides or batch.preempted or batch.may_displace or len(batch.chunks) > 1:
            return 1
        most = decodes.steps_to_finish()
        if batch.chunks:
            sequence, chunk = batch.chunks[0]
            if chunk < scheduler.limits.step_tokens - decodes.count:
                return 1
            chunks = max(1, (sequence.target - sequence.computed - 1) // chunk)
            most = chunks if most is None else min(most, chunks)
        if most is None:
            raise RuntimeError("a batch without members has no steps")
        free = scheduler.kv.free
        if decodes.count * (most // self.profile.block_tokens + 1) < free and not batch.chunks:
            return most
        if self._blocks_ahead(batch, most) <= free:
            return most
        fits = 1
        while most - fits > 1:
            middle = (fits + most) // 2
            if self._blocks_ahead(batch, middle) <= free:
                fits = middle
            else:
                most = middle
        return fits

    def _blocks_ahead(self, batch: Batch, steps: int) -> int:
        """Blocks for so many steps beyond those of the first, which are allocated."""
        needed = self.scheduler.decodes.blocks_needed(steps - 1, after=1)
        for sequence, chunk in batch.chunks:
            tokens = sequence.computed + chunk * steps
            needed += -(-tokens // self.profile.block_tokens) - sequence.holder.blocks
        return needed

    def _allocate_ahead(self, batch: Batch, steps: int) -> None:
        scheduler = self.scheduler
        needed = scheduler.decodes.blocks_needed(steps - 1, after=1)
        if needed:
            scheduler.kv.allocate(scheduler.pool, needed)
        for sequence, chunk in batch.chunks:
            scheduler.extend(sequence, sequence.computed + chunk * steps)

    def _steps_until_event(self, most: int, first_ps: int, more_ps: int) -> int:
        """The smallest step count whose end reaches the next event, at most `most`."""
        due_ps = self.scheduler.next_change_ps()
        if self._events and (due_ps is None or self._events[0][0] < due_ps):
            due_ps = self._events[0][0]
        if due_ps is None:
            return most
        return steps_until(due_ps - self.now_ps, most, first_ps, more_ps)

    def _emit(self, event: str, view: Request, **fields: Any) -> None:
        if self._on_event is not None:
            now_s, program_id, turn = self.scheduler.now_s, view.program_id, view.index
            self._on_event(
                EventRecord(t=now_s, event=event, program_id=program_id, turn=turn, **fields)
            )
