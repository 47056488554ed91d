"""One engine replica in virtual time whose layers are divided over stages (vLLM's
`--pipeline-parallel-size N`).

In and out: as `Engine`. As in vLLM's `step_with_batch_queue`, up to N batches are computed at a
time, a further one is scheduled when the oldest ends, and a batch without tokens counts as one that
ends with the batch before it. Each batch passes all stages in turn; a stage computes one batch at a
time, in the order in which they were scheduled.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from servers.admission import Limits
from servers.policies.base import Policy
from servers.policies.runner import Emit
from servers.profiles import Profile
from servers.profiles.layout import Stages
from servers.sim.batching import Batch
from servers.sim.engine import Engine, OnEnd, OnEvent
from servers.sim.pipeline_scheduler import PipelineScheduler
from servers.sim.scheduler import Scheduler
from servers.sim.sequence import Phase, Sequence
from servers.sim.settings import Offload


class _InFlight(NamedTuple):
    """A batch that is being computed."""

    batch: Batch
    group: int
    """The group of its decodes."""
    prompts: set[Sequence]
    """Turns whose prompt it computes to the end."""
    ends_ps: int


class PipelineEngine(Engine):
    """Computes each step by itself."""

    def __init__(
        self,
        policy: Policy,
        profile: Profile,
        limits: Limits,
        stages: Stages,
        *,
        on_end: OnEnd,
        on_event: OnEvent | None = None,
    ) -> None:
        """`profile`: of the slowest stage."""
        self._stages = stages
        super().__init__(policy, profile, limits, on_end=on_end, on_event=on_event, strides=False)
        self._queue: deque[_InFlight | None] = deque()
        """Oldest first; None for a batch without tokens."""
        self._free_ps = [0] * stages.count
        """When each stage ends its last batch."""

    def _build(
        self,
        policy: Policy,
        limits: Limits,
        offload: Offload | None,
        emit: Emit[Sequence] | None,
    ) -> Scheduler:
        self._pipelined = PipelineScheduler(policy, self.profile, limits, self._stages.count, emit)
        self._turns = self._pipelined.pipelined
        return self._pipelined

    def begin_batch(self) -> bool:
        empty = 0
        while empty <= self._stages.count:
            while len(self._queue) < self._stages.count:
                batch = self._schedule()
                if self._decodes.count or batch.chunks:
                    self._queue.append(self._begin(batch))
                    empty = 0
                    continue
                self._turns.begin(batch)
                self._queue.append(None)
                empty = 0 if batch.preempted or batch.displaced else empty + 1
            if (oldest := self._queue[0]) is not None:
                self._batch, self.due_ps = oldest.batch, oldest.ends_ps
                return True
            self._queue.popleft()
            self._known_ps = self.now_ps
        self._batch = None
        return False

    def _schedule(self) -> Batch:
        self._turns.next_group()
        self._decodes = self._turns.decodes
        self._due.take(self._prepare_step(), self._arrive_or_abort)
        self.strides += 1
        return self.scheduler.schedule()

    def _begin(self, batch: Batch) -> _InFlight:
        """Compute the batch in all stages, one after the other."""
        self._plan(batch)
        stages, ready_ps = self._stages, self.now_ps
        for stage, free_ps in enumerate(self._free_ps):
            if stage:
                ready_ps += stages.transfer_ps + self._batch_tokens * stages.transfer_token_ps
            ready_ps = max(ready_ps, free_ps) + self._first_ps
            self._free_ps[stage] = ready_ps
        return _InFlight(batch, self._turns.group, self._turns.begin(batch), ready_ps)

    def finish_batch(self) -> None:
        ended = self._queue.popleft()
        if ended is None:
            raise RuntimeError("no batch is being computed")
        self._batch = None
        self._known_ps = self.now_ps
        self.now_ps = self._ended_ps = ended.ends_ps
        self.steps += 1
        self._runner.now_ps = self.now_ps
        self._end(ended)

    def _end(self, ended: _InFlight) -> None:
        """Give each turn of a batch its token, and end the complete ones in order of admission."""
        turns, now_ps = self._turns, self.now_ps
        done, preempted = turns.end_decodes(ended.group)
        for sequence, _ in ended.batch.chunks:
            samples = sequence in ended.prompts
            turns.end_chunk(sequence, samples=samples)
            if sequence in turns.undelivered:
                if samples:
                    preempted.append(sequence)
                else:
                    turns.deliver(sequence)
                continue
            if not samples or sequence.finished_ps is not None:
                continue
            self._sample(sequence)
            sequence.enter(Phase.DECODE, now_ps)
            if sequence.view.output_tokens == sequence.submission.output_tokens:
                done.append(sequence)
            else:
                turns.join(sequence, ended.group)
        for sequence in preempted:
            turns.deliver(sequence)
            if sequence.finished_ps is None:
                self._sample(sequence)
                if sequence.view.output_tokens == sequence.submission.output_tokens:
                    done.append(sequence)
        if done:
            self._known_ps = now_ps
        for sequence in sorted(done, key=_admission):
            if turns.by_id.pop(sequence.view.id, None) is not None:
                self.scheduler.finish(sequence)
            else:
                self._pipelined.finish_preempted(sequence)
            self._on_end(sequence)

    def _sample(self, sequence: Sequence) -> None:
        sequence.view.output_tokens += 1
        if sequence.first_token_ps is None:
            sequence.first_token_ps = self.now_ps


def _admission(sequence: Sequence) -> int:
    return sequence.admission
