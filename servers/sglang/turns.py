"""The turns of an engine with SGLang's scheduling in virtual time, and what is recorded of them.

`SteppedSglang` is what SGLang's own scheduler (`virtual_time`) and the model of it (`sim`) share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from servers.basics.clock import PS_PER_S
from servers.policies.runner import PolicyRunner
from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.remote.stepped import SteppedEngine
from servers.sglang.schedulers import SglangScheduler
from servers.sim import EngineUsage, Limits, Phase, Sequence

RESERVED_TOKENS = 7
"""SGLang refuses prompts, and shortens answers, that leave fewer slots of its KV memory free."""


class SteppedSglang(SteppedEngine):
    def __init__(
        self,
        scheduler: SglangScheduler,
        profile: Profile,
        limits: Limits,
        on_end: Callable[[Sequence], None],
        on_event: Callable[[EventRecord], None] | None,
    ) -> None:
        super().__init__(profile, limits, on_end, on_event)
        self._runner: PolicyRunner[Sequence, None] = PolicyRunner(
            scheduler,
            retain_blocks=lambda _turn, _whole: (None, 0),
            release_blocks=lambda _: None,
            emit=self._emit,
        )
        """Counts programs and records events; it decides nothing."""
        self._kv_tokens = profile.kv_blocks * profile.block_tokens
        self._arrived = 0

    def end_program(self, program_id: str) -> None:
        self._runner.end_program(program_id)

    def _usage(self, free_tokens: int, waiting: int, running: int) -> EngineUsage:
        used = self._kv_tokens - free_tokens
        blocks = -(-used // self.profile.block_tokens)
        return EngineUsage(self.now_ps / PS_PER_S, blocks, 0, waiting, running)

    def _arrive(self, sequence: Sequence) -> None:
        """Record an arrival, and number it."""
        self._arrived += 1
        sequence.view.id = self._arrived
        self._runner.now_ps = self.now_ps
        self._runner.arrived(sequence)

    def _admit_if_waiting(self, sequence: Sequence, tokens: int, hit: int) -> None:
        """Record the admission of a turn of `tokens` tokens, of which `hit` are cached, unless it
        runs already."""
        if sequence.phase not in (Phase.QUEUE, Phase.PREEMPTED):
            return
        self._runner.now_ps = self.now_ps
        self._runner.admitted(sequence, tokens, hit)
        sequence.start(self.now_ps)
        if sequence.hits is None:
            sequence.hits = [("device", hit)]

    def _record_retraction(self, sequence: Sequence) -> None:
        sequence.preemptions += 1
        sequence.enter(Phase.PREEMPTED, self.now_ps)
        self._runner.now_ps = self.now_ps
        self._runner.preempted(sequence)

    def _end_batch(self, prefilled: Iterable[Sequence], finished: list[Sequence]) -> None:
        """Record the end of a batch: the turns whose prompt is computed, and those that ended."""
        self._runner.now_ps = self.now_ps
        for sequence in prefilled:
            if sequence.first_token_ps is None:
                sequence.first_token_ps = self.now_ps
            sequence.enter(Phase.DECODE, self.now_ps)
        for sequence in finished:
            submission = sequence.submission
            sequence.view.output_tokens = submission.output_tokens
            self._runner.finished(sequence, submission.prompt_tokens + submission.output_tokens)
            sequence.close(self.now_ps)
        for sequence in finished:
            self._on_end(sequence)
