"""vLLM's scheduler behind the batch queue of `EngineCore.step_with_batch_queue`, on a virtual
clock. Runs under vLLM's interpreter.

As in vLLM 0.32 with pipeline parallelism and model runner V2, but the queue holds one batch less:
virtual time schedules a step when its predecessor in the queue has ended (docs/design/
virtual-time.md), and knows of arrivals as vLLM's queue does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from servers.profiles.layout import Stages
from servers.sim import Phase
from servers.vllm.virtual_time.engine import TOKEN, VirtualVllm
from servers.vllm.virtual_time.headless import answer


class PipelinedVllm(VirtualVllm):
    def __init__(self, *args: Any, stages: Stages, **kwargs: Any) -> None:
        super().__init__(*args, strides=False, **kwargs)
        self._stages = stages
        self._free_ps = [0] * stages.count
        # As `AsyncScheduler` has them with `--pipeline-parallel-size N`.
        self.vllm.pp_size = self.vllm.decode_stagger = stages.count
        self.vllm.use_v2_model_runner = True

    def run(self, programs: Iterable[object] = ()) -> None:
        vllm, runner, queue, empty = self.vllm, self._runner, deque[Any](), 0
        self._due.begin(programs)
        while not self._stopped:
            ahead = self.profile.schedules_ahead and self._ended_ps == self.now_ps
            self._due.take(self._known_ps if ahead else self.now_ps, self._take)
            events = runner.events
            output = vllm.schedule()
            self.strides += 1
            queue.append((output, self._begin(output)))
            empty = 0 if output.num_scheduled_tokens or runner.events != events else empty + 1
            if len(queue) < self._stages.count:
                continue
            output, begun = queue.popleft()
            if begun is not None:
                self._end(output, *begun)
                continue
            answer(vllm, output, {})
            self._known_ps = self.now_ps
            if empty > self._stages.count:
                self._ended_ps, empty = -1, 0
                if (due_ps := self._due.next_ps) is None:
                    break
                self.now_ps = max(self.now_ps, due_ps)
        if vllm.has_unfinished_requests() and not self._stopped:
            raise RuntimeError("turns wait, no turn runs, and nothing will free memory")

    def _begin(self, output: Any) -> tuple[int, list[str], list[str]] | None:
        """Return when a batch ends, and the requests of which it samples a token: all, and those
        whose prompt ends. None for a batch without tokens."""
        if not output.num_scheduled_tokens:
            return None
        chunks, contexts, sampled, prefilled = [], [], [], []
        for key, chunk in output.num_scheduled_tokens.items():
            request = self.vllm.requests[key]
            if key in self._decoding:
                contexts.append(request.num_computed_tokens)
                sampled.append(key)
                continue
            chunks.append((chunk, request.num_computed_tokens - chunk))
            if request.num_computed_tokens >= request.num_tokens:
                sampled.append(key)
                prefilled.append(key)
        step_ps = self.profile.batch_ps(chunks, contexts)
        tokens = sum(output.num_scheduled_tokens.values())
        hop_ps = self._stages.transfer_ps + tokens * self._stages.transfer_token_ps
        ends_ps = self.now_ps - hop_ps
        for stage, free_ps in enumerate(self._free_ps):
            self._free_ps[stage] = ends_ps = max(ends_ps + hop_ps, free_ps) + step_ps
        return ends_ps, sampled, prefilled

    def _end(self, output: Any, ends_ps: int, sampled: list[str], prefilled: list[str]) -> None:
        self._elapse(1, ends_ps - self.now_ps, 0)
        first = [self._turns[key] for key in prefilled if self._turns[key].finished_ps is None]
        answer(self.vllm, output, {key: [TOKEN] for key in sampled})
        for sequence in first:
            if sequence.first_token_ps is None:
                sequence.first_token_ps = self.now_ps
            if sequence.finished_ps is None and sequence.phase != Phase.PREEMPTED:
                sequence.enter(Phase.DECODE, self.now_ps)
                self._decoding.add(str(sequence.view.id))
        if self._ended:
            self._known_ps = self.now_ps
        self._report_ended()
