"""Runs the installed SGLang's scheduler on a virtual clock.

`VirtualSglang` has the interface and the step times of `servers.sim.Engine`, while SGLang's
`Scheduler`, its policies and its radix cache schedule turns and manage KV. The trace defines the
contents in blocks, so the tokens of a block are its number in the tree of contents. Runs under
SGLang's interpreter, for one replica without HiCache, and without SGLang's overlap schedule.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

from sglang.srt.managers.io_struct import CloseSessionReqInput, TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams

from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.sglang.schedulers import SglangScheduler
from servers.sglang.turns import SteppedSglang
from servers.sglang.virtual_time.headless import VOCABULARY, headless_scheduler
from servers.sim import EngineUsage, Limits, Segment, Sequence


class Tokens:
    """Token ids, derived from the position of their block in the tree of contents."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._numbers: dict[tuple[Segment, int], int] = {}
        self._next = VOCABULARY  # beyond the tokens of the model, one of which ends answers

    def of(self, sequence: Sequence) -> array[int]:
        """Return the tokens of the prompt and the answer. Those of a partly filled last block are
        of this turn only."""
        submission = sequence.submission
        tokens = array("q")
        for segment, exit_depth in submission.path:
            for depth in range(len(tokens) // self._block, exit_depth):
                number = self._numbers.get((segment, depth))
                if number is None:
                    number = self._numbers[segment, depth] = self._new()
                tokens.extend([number] * self._block)
        rest = submission.prompt_tokens + submission.output_tokens - len(tokens)
        tokens.extend([self._new()] * rest)
        return tokens

    def _new(self) -> int:
        self._next += 1
        return self._next


class VirtualSglang(SteppedSglang):
    def __init__(
        self,
        scheduler: SglangScheduler,
        profile: Profile,
        limits: Limits,
        *,
        on_end: Callable[[Sequence], None],
        on_event: Callable[[EventRecord], None] | None = None,
    ) -> None:
        super().__init__(scheduler, profile, limits, on_end, on_event)
        self.sglang = headless_scheduler(
            scheduler,
            kv_tokens=self._kv_tokens,
            max_num_seqs=limits.max_num_seqs,
            step_tokens=limits.step_tokens,
            max_model_len=profile.max_model_len,
            forward=self._forward,
            on_retract=self._retracted,
        )
        self._sessions = scheduler.sessions
        self._contents = Tokens(profile.block_tokens)
        self._turns: dict[str, tuple[Sequence, array[int]]] = {}
        """Turns that have not ended and their tokens, by request id, which is their number in order
        of arrival."""

    def end_program(self, program_id: str) -> None:
        super().end_program(program_id)
        self._close_session(program_id)

    def _close_session(self, program_id: str | None) -> None:
        if self._sessions and program_id is not None:
            self.sglang.close_session(CloseSessionReqInput(session_id=program_id))

    def usage(self) -> EngineUsage:
        sglang = self.sglang
        free = (
            sglang.token_to_kv_pool_allocator.available_size() + sglang.tree_cache.evictable_size()
        )
        waiting = len(sglang.waiting_queue)
        return self._usage(free, waiting, len(self._turns) - waiting)

    def run(self, programs: Iterable[object] = ()) -> None:
        sglang = self.sglang
        self._due.begin(programs)
        while not self._stopped:
            self._due.take(self.now_ps, self._take)
            plan = sglang.get_next_batch_to_run(
                running_batch=sglang.running_batch, last_batch=sglang.last_batch
            )
            sglang.running_batch, batch = plan.running_batch, plan.batch_to_run
            sglang.last_batch = batch
            if batch:
                self._step(batch)
                continue
            sglang.on_idle()
            if (due_ps := self._due.next_ps) is None:
                break
            self.now_ps = max(self.now_ps, due_ps)
        if self._turns and not self._stopped:
            raise RuntimeError("turns wait, no turn runs, and nothing will free memory")

    def _take(self, sequence: Sequence) -> None:
        self._arrive(sequence)
        key, submission = str(self._arrived), sequence.submission
        tokens = self._contents.of(sequence)
        self._turns[key] = sequence, tokens
        self.sglang.process_input_requests(
            [
                TokenizedGenerateReqInput(
                    rid=key,
                    input_text=None,
                    input_ids=tokens[: submission.prompt_tokens],
                    input_embeds=None,
                    mm_inputs=None,
                    token_type_ids=None,
                    sampling_params=_sampling(submission.output_tokens),
                    return_logprob=False,
                    logprob_start_len=-1,
                    top_logprobs_num=0,
                    token_ids_logprob=None,
                    stream=False,
                    session_id=submission.program_id if self._sessions else None,
                    routing_key=submission.program_id,
                )
            ]
        )

    def _step(self, batch: Any) -> None:
        """Run one batch, which has either chunks of prompts or decodes."""
        chunks: list[tuple[int, int]] = []
        contexts: list[int] = []
        prefilled = []
        if batch.forward_mode.is_extend():
            for req in batch.reqs:
                self._admit_if_waiting(self._turns[req.rid][0], req.seqlen, req.prefix_len)
            chunks = [(req.extend_len, req.prefix_len) for req in batch.reqs]
            prefilled = [req for req in batch.reqs if req.prefix_len + req.extend_len == req.seqlen]
        else:
            contexts = batch.seq_lens_cpu.tolist()
        self.now_ps += self.profile.batch_ps(chunks, contexts)
        self.steps += 1
        self.strides += 1
        self.sglang.process_batch_result(batch, self.sglang.run_batch(batch))
        sequences = [self._turns[req.rid][0] for req in prefilled]
        self._end_batch(sequences, [self._ended(req) for req in batch.reqs if req.finished()])

    def _ended(self, req: Any) -> Sequence:
        sequence, _ = self._turns.pop(req.rid)
        if len(req.output_ids) != sequence.submission.output_tokens:
            raise RuntimeError(f"SGLang ended turn {req.rid} early: {req.finished_reason}")
        if sequence.submission.is_last:
            self._close_session(sequence.submission.program_id)
        return sequence

    def _forward(self, batch: Any) -> list[int]:
        return [self._turns[req.rid][1][req.seqlen] for req in batch.reqs]

    def _retracted(self, req: Any) -> None:
        self._record_retraction(self._turns[req.rid][0])


def _sampling(output_tokens: int) -> Any:
    """The answer could end earlier, so that SGLang reserves a share of its length only, as for the
    requests of agents."""
    sampling = SamplingParams(max_new_tokens=output_tokens, temperature=0.0)
    sampling.normalize(None)
    return sampling
