"""The scheduler of an engine whose layers are divided over stages, as vLLM 0.32 schedules with
`--pipeline-parallel-size N`.

Batches are scheduled before the ones before them end, up to N at a time. So in addition to what
`Scheduler` does:

- A decode computes its next token N steps after the last one, since that one must be sampled
  first. Decodes thus form N groups, and each step computes those of one group. A decode that gets
  no slot joins the next group.
- Further chunks of a prompt are scheduled while those before them are computed.
- A preempted turn may be in a step that is being computed. It gets the token of that step, and is
  not admitted before; turns behind it may be.

Models with one KV group only, without offload tiers and speculative decoding.
"""

from __future__ import annotations

from servers.admission import Limits
from servers.policies.base import Policy
from servers.policies.runner import Emit
from servers.profiles import Profile
from servers.sim.batching import Batch, RunningTurns
from servers.sim.decodes import Decodes, decodes_of
from servers.sim.kv import DeviceKV
from servers.sim.scheduler import Scheduler
from servers.sim.sequence import Sequence


class PipelinedTurns(RunningTurns):
    """The running turns. `decodes` are those of the group of the step that is scheduled next."""

    def __init__(self, kv: DeviceKV, profile: Profile, step_tokens: int, stages: int) -> None:
        super().__init__(kv, profile, step_tokens)
        self.groups: list[Decodes] = [decodes_of(profile) for _ in range(stages)]
        self.group = stages - 1
        """Index of the group of the step that is scheduled next."""
        self.decodes = self.groups[self.group]
        self.undelivered: dict[Sequence, int] = {}
        """Turns that were preempted or aborted while steps with their tokens were computed, and the
        number of these steps."""
        self._group_of: dict[Sequence, int] = {}
        self._left: list[list[Sequence]] = [[] for _ in range(stages)]
        """By group, decodes that left it while its step was computed."""
        self._chunks: dict[Sequence, int] = {}
        """Number of chunks of a prompt that are being computed."""
        self._sampling: set[Sequence] = set()
        """Turns whose prompt is scheduled to its end, and whose first token is not sampled yet."""
        self._skipped: list[Sequence] = []

    def next_group(self) -> None:
        """Go on to the group of the next step, whose last step has ended."""
        self.group = (self.group + 1) % len(self.groups)
        self.decodes = self.groups[self.group]
        for sequence in self._skipped:
            self.join(sequence, self.group)
        self._skipped = []

    def join(self, sequence: Sequence, group: int) -> None:
        """Add a decode to a group."""
        self.groups[group].join(sequence)
        self._group_of[sequence] = group

    def begin(self, batch: Batch) -> set[Sequence]:
        """Count the tokens of a scheduled batch. Return the turns whose prompt ends with it."""
        self._skipped = batch.skipped
        for sequence in batch.skipped:
            self._group_of.pop(sequence, None)
        ends = set()
        for sequence, chunk in batch.chunks:
            sequence.computed += chunk
            self._chunks[sequence] = self._chunks.get(sequence, 0) + 1
            if sequence.computed == sequence.target:
                self._sampling.add(sequence)
                ends.add(sequence)
        return ends

    def end_chunk(self, sequence: Sequence, *, samples: bool) -> None:
        """Count a chunk as computed. `samples`: it is the last one of the prompt."""
        left = self._chunks.pop(sequence) - 1
        if left:
            self._chunks[sequence] = left
        if samples:
            self._sampling.discard(sequence)

    def end_decodes(self, group: int) -> tuple[list[Sequence], list[Sequence]]:
        """Give each decode of a group its token. Return those that are complete, and those that
        left the group while the token was computed."""
        decodes, left = self.groups[group], self._left[group]
        decodes.advance(1)
        self._left[group] = []
        done = decodes.pop_finished()
        for sequence in done:
            del self._group_of[sequence]
            self.settle(sequence, has_slot=False)
        return done, left

    def deliver(self, sequence: Sequence) -> bool:
        """Count a step with tokens of the turn as computed. Return whether the turn was preempted
        or aborted before."""
        steps = self.undelivered.pop(sequence, 0)
        if steps > 1:
            self.undelivered[sequence] = steps - 1
        return steps > 0

    # Overrides ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        for sequence, group in self._group_of.items():
            self.groups[group].refresh(sequence)

    def in_step(self) -> list[Sequence]:
        groups, now = self._group_of, self.group
        return [each for each in self.by_id.values() if groups.get(each, now) == now]

    def extend_all(self, batch: Batch) -> bool:
        """Also return False if turns before a decode may compute more tokens than in the step in
        which it was admitted, since groups have different numbers of decodes."""
        if self.partial and self.most_chunk < self._step_tokens:
            return False
        return super().extend_all(batch)

    def context_tokens(self) -> int:
        decodes = sum([group.context - group.count for group in self.groups])
        prompts = sum([sequence.computed for sequence in self.partial])
        return decodes + prompts + sum([sequence.computed - 1 for sequence in self._sampling])

    def remove(self, sequence: Sequence, has_slot: bool) -> None:
        group = self._group_of.pop(sequence, None)
        if group is None:
            super().remove(sequence, has_slot)
            self._sampling.discard(sequence)
            if steps := self._chunks.get(sequence, 0):
                self.undelivered[sequence] = steps
            return
        del self.by_id[sequence.view.id]
        self.groups[group].leave(sequence)
        if group != self.group:
            # The step that is being computed has filled the slot.
            sequence.computed += 1
            has_slot = False
            self._left[group].append(sequence)
            self.undelivered[sequence] = 1
        self.settle(sequence, has_slot)


class PipelineScheduler(Scheduler):
    def __init__(
        self,
        policy: Policy,
        profile: Profile,
        limits: Limits,
        stages: int,
        emit: Emit[Sequence] | None,
    ) -> None:
        self._stages = stages
        super().__init__(policy, profile, limits, [], emit)
        self._behind: list[Sequence] = []
        """Waiting turns that this step does not admit since a token of theirs is computed."""

    def _build(self, profile: Profile) -> tuple[DeviceKV, RunningTurns]:
        kv = DeviceKV(profile.kv_blocks)
        self.pipelined = PipelinedTurns(kv, profile, self.limits.step_tokens, self._stages)
        return kv, self.pipelined

    def finish_preempted(self, sequence: Sequence) -> None:
        """End a waiting turn whose last token was computed when it was preempted."""
        self.runner.waiting.remove(sequence.view.id)
        sequence.computed = sequence.target - 1
        self.finish(sequence)

    def _set_aside(self, head: Sequence) -> bool:
        if head not in self.pipelined.undelivered:
            return False
        self.runner.waiting.remove(head.view.id)
        self._behind.append(head)
        return True

    def _admit_waiting(self, batch: Batch) -> None:
        super()._admit_waiting(batch)
        for sequence in self._behind:
            self.runner.push(sequence)
        self._behind = []
