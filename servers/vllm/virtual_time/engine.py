"""Runs the installed vLLM's scheduler, with the plug-in, on a virtual clock.

`VirtualVllm` has the interface and the step times of `servers.sim.Engine`, while vLLM's `Scheduler`
and KV manager schedule turns and manage KV. Consecutive steps without a possible decision are
computed at once: each decode gets its tokens and blocks as if each step had been scheduled, so that
the result equals single steps exactly. The trace defines the contents, so a block's hash is its
position in the tree of contents instead of a hash of its tokens. Runs under vLLM's interpreter, for
one replica without an offload tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.request import Request, RequestStatus

from servers.basics.clock import PS_PER_S
from servers.policies.base import Future, Policy
from servers.profiles import Profile
from servers.profiles.drafts import step_ps as speculative_step_ps
from servers.records.turns import EventRecord
from servers.remote.stepped import SteppedEngine
from servers.sim import EngineUsage, Limits, Path, Phase, Segment, Sequence
from servers.sim.strides import duration_ps, steps_until
from servers.speculation import turn_key
from servers.vllm.plugin.request_tags import VllmTurn
from servers.vllm.plugin.scheduler import TurnstileScheduler
from servers.vllm.plugin.settings import Options
from servers.vllm.virtual_time.headless import MAX_MODEL_LEN, answer, headless_scheduler, sampling

TOKEN = 7
"""The token that each step samples. Its value has no effect."""

Hasher = Callable[[Request], list[bytes]]


class BlockHashes:
    """Hashes of blocks, derived from their position in the tree of contents."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._hashes: dict[Segment, tuple[int, list[bytes]]] = {}

    def hasher(self, path: Path) -> Hasher:
        """Return the function that vLLM calls for the hashes of a request's new full blocks."""
        known: list[bytes] = []
        for segment, exit_depth in path:
            begin, end = len(known) - segment.start, exit_depth - segment.start
            known += self._of(segment, end)[begin:end]
        size = self._block

        def hasher(request: Request) -> list[bytes]:
            return known[len(request.block_hashes) : request.num_tokens // size]

        return hasher

    def _of(self, segment: Segment, blocks: int) -> list[bytes]:
        number, hashes = self._hashes.setdefault(segment, (len(self._hashes), []))
        while len(hashes) < blocks:
            hashes.append(number.to_bytes(8, "big") + len(hashes).to_bytes(8, "big"))
        return hashes


class VirtualScheduler(TurnstileScheduler):
    """The plug-in with a policy object, a clock and an event log from the caller instead of from
    options."""

    def __init__(
        self,
        *,
        policy: Policy,
        events: Any,
        clock_ps: Callable[[], int],
        kv_tokens: int | None = None,
        guarded: bool = False,
        **kwargs: Any,
    ) -> None:
        """`kv_tokens`: the KV memory in tokens; None: as the plug-in computes it. `guarded`: go on
        if the policy raises an exception, as the plug-in does in a server."""
        self._policy_object, self._events, self._guarded = policy, events, guarded
        self._given_kv_tokens = kv_tokens
        self.clock_ps = clock_ps
        self.wall_clock_s = lambda: clock_ps() / PS_PER_S
        self.future: Future | None = None
        """The future of the turn that arrives next, for an `Oracle`."""
        super().__init__(**kwargs)

    def _turn(self, request: Request) -> VllmTurn:
        turn = super()._turn(request)
        turn.future = self.future
        return turn

    def _read_options(self) -> Options:
        return Options(idle_s=None, conversations=False)

    def _read_policy(self, kv_tokens: int) -> Policy:
        return self._policy_object

    def _tolerates_failures(self) -> bool:
        return self._guarded

    def _tokens_of_kv(self) -> int:
        given = self._given_kv_tokens
        return super()._tokens_of_kv() if given is None else given

    def _open_log(self) -> Any:
        return self._events

    def forget_fit(self) -> None:
        """Count the blocks of running turns again, since tokens were computed without a step."""
        self._reclaiming_manager.steps_that_fit = 0


class VirtualVllm(SteppedEngine):
    def __init__(
        self,
        policy: Policy,
        profile: Profile,
        limits: Limits,
        *,
        on_end: Callable[[Sequence], None],
        on_event: Callable[[EventRecord], None] | None = None,
        strides: bool = True,
    ) -> None:
        super().__init__(profile, limits, on_end, on_event)
        self._ended_ps = self._known_ps = 0
        """As in `servers.sim.Engine`."""
        self.vllm = headless_scheduler(
            VirtualScheduler,
            profile,
            max_num_seqs=limits.max_num_seqs,
            step_tokens=limits.step_tokens,
            admission=limits.admission,
            headroom=limits,
            speculation=limits.speculation,
            max_model_len=_longest(profile) if limits.speculate else MAX_MODEL_LEN,
            policy=policy,
            events=self,
            clock_ps=lambda: self.now_ps,
            kv_tokens=profile.kv_tokens(limits.step_tokens, profile.max_model_len),
        )
        self._runner = self.vllm.runner
        # With several groups, a stride needs other blocks than its single steps; with a window, it
        # takes another time.
        one_kind = len(profile.kv_groups) == 1 and profile.window is None
        self._speculation = limits.speculation
        self._strides = strides and one_kind and not limits.speculate
        self._contents = BlockHashes(profile.block_tokens)
        self._turns: dict[str, Sequence] = {}
        """Turns by request id, which is their number in order of arrival."""
        self._decoding: set[str] = set()
        self._ended: list[Sequence] = []

    def abort(self, sequence: Sequence, at_ps: int) -> None:
        self._due.add(at_ps, sequence)

    def end_program(self, program_id: str) -> None:
        self._runner.end_program(program_id)

    def usage(self) -> EngineUsage:
        pool = self.vllm.kv_cache_manager.block_pool
        return EngineUsage(
            self.now_ps / PS_PER_S,
            self.profile.kv_blocks - pool.get_num_free_blocks(),
            self._runner.pins.blocks,
            len(self._runner.queued),
            len(self.vllm.running),
        )

    def run(self, programs: Iterable[object] = ()) -> None:
        vllm, runner = self.vllm, self._runner
        self._due.begin(programs)
        while not self._stopped:
            ahead = self.profile.schedules_ahead and self._ended_ps == self.now_ps
            self._due.take(self._known_ps if ahead else self.now_ps, self._take)
            events = runner.events
            output = vllm.schedule()
            self.strides += 1
            if output.num_scheduled_tokens:
                self._compute(output, steady=runner.events == events)
                continue
            answer(vllm, output, {})
            if runner.events != events:
                continue
            self._ended_ps = -1
            if (due_ps := self._due.next_ps) is None:
                break
            self.now_ps = max(self.now_ps, due_ps)
        if vllm.has_unfinished_requests() and not self._stopped:
            raise RuntimeError("turns wait, no turn runs, and nothing will free memory")

    # Submitted turns ----------------------------------------------------------------------------

    def _take(self, sequence: Sequence) -> None:
        """Add a turn to vLLM. The second time, abort it."""
        if not sequence.arrived:
            sequence.arrived = True
            key = str(len(self._turns) + 1)
            self._turns[key] = sequence
            self.vllm.future = sequence.submission.future
            self.vllm.add_request(self._request(key, sequence))
        elif sequence.finished_ps is None:
            self.vllm.finish_requests(str(sequence.view.id), RequestStatus.FINISHED_ABORTED)
            self._report_ended()

    def _request(self, key: str, sequence: Sequence) -> Request:
        submission = sequence.submission
        tags: dict[str, Any] = {"tools": ",".join(submission.tools)}
        if submission.program_id:
            tags["program_id"] = submission.program_id
        if submission.is_last is not None:
            tags["is_last"] = int(submission.is_last)
        return Request(
            request_id=key,
            prompt_token_ids=[TOKEN] * submission.prompt_tokens,
            sampling_params=sampling(submission.output_tokens, **tags),
            pooling_params=None,
            arrival_time=sequence.view.arrival_s,
            block_hasher=self._contents.hasher(submission.path),
        )

    # Events and ended turns ---------------------------------------------------------------------

    def write(self, t: float, event: str, turn: VllmTurn, fields: dict[str, Any]) -> None:
        """Record an event of the plug-in. This object is the plug-in's event log."""
        sequence = self._turns[turn.request_id]
        if event == "arrival":
            sequence.view, sequence.pinned_hit = turn.view, turn.pinned_hit
        elif event in ("waiting_to_running", "evicted_to_running"):
            sequence.start(self.now_ps)
            if sequence.hits is None:
                sequence.hits = [("device", fields["hit_length"])]
        elif event == "preempted":
            sequence.preemptions += 1
            sequence.enter(Phase.PREEMPTED, self.now_ps)
            self._decoding.discard(turn.request_id)
        elif event in ("finished", "aborted"):
            sequence.close(self.now_ps, error="aborted" if event == "aborted" else None)
            self._decoding.discard(turn.request_id)
            self._ended.append(sequence)
        self._emit(t, event, turn, fields)

    def close(self) -> None:
        """Do nothing when the plug-in closes its event log."""

    def _report_ended(self) -> None:
        ended, self._ended = self._ended, []
        for sequence in ended:
            self._on_end(sequence)

    # Steps --------------------------------------------------------------------------------------

    def _compute(self, output: Any, steady: bool) -> None:
        """Run one step. If the batch contains only decodes and is unchanged, run several steps at
        once."""
        chunks: list[tuple[int, int]] = []
        decodes: list[tuple[int, int]] = []
        sampled, prefilled = {}, []
        for key, chunk in output.num_scheduled_tokens.items():
            request = self.vllm.requests[key]
            done = request.num_computed_tokens - chunk
            if key in self._decoding:
                decodes.append((chunk, request.num_computed_tokens))
                sampled[key] = [TOKEN] * self._generated(request, chunk)
                continue
            chunks.append((chunk, done))
            if request.num_computed_tokens >= request.num_tokens:
                sampled[key] = [TOKEN]
                prefilled.append(key)
        if self._speculation is None:
            step_ps = self.profile.batch_ps(chunks, [context for _, context in decodes])
        else:
            step_ps = speculative_step_ps(self.profile, self._speculation, chunks, decodes)
        steady = steady and not chunks and len(decodes) == len(self.vllm.running)
        self._elapse(1, step_ps, 0)
        answer(self.vllm, output, sampled)
        for key in prefilled:
            sequence = self._turns[key]
            if sequence.first_token_ps is None:
                sequence.first_token_ps = self.now_ps
            if sequence.finished_ps is None:
                sequence.enter(Phase.DECODE, self.now_ps)
                self._decoding.add(key)
        if self._ended:
            self._known_ps = self.now_ps
        elif steady and self._strides and not self.vllm.may_displace():
            self._stride(step_ps)
        self._report_ended()

    def _generated(self, request: Request, tokens: int) -> int:
        """Return how many tokens a decode generates in a step that computes `tokens` of it."""
        if self._speculation is None:
            return 1
        view = self._turns[request.request_id].view
        key = turn_key(view.program_id, view.index)
        return 1 + min(self._speculation.accepted(key, request.num_output_tokens), tokens - 1)

    def _stride(self, last_ps: int) -> None:
        """Run all steps up to the next event, after a step of duration `last_ps`."""
        running, manager = self.vllm.running, self.vllm.kv_cache_manager
        increment_ps = self.profile.increment_ps(len(running), 0)
        step_ps = last_ps + increment_ps
        max_steps = min(r.max_tokens - r.num_output_tokens for r in running) - 1
        due_ps = self._due.next_or(self._runner.next_change_ps())
        if max_steps < 1 or (due_ps is not None and due_ps <= self.now_ps):
            return
        if due_ps is not None:
            max_steps = steps_until(due_ps - self.now_ps, max_steps, step_ps, increment_ps)
        steps = self._steps_that_fit(max_steps)
        if not steps:
            return
        for request in running:
            request.append_output_token_ids([TOKEN] * steps)
            if manager.allocate_slots(request, steps) is None:
                raise RuntimeError(f"no blocks for {steps} tokens of {request.request_id}")
            request.num_computed_tokens += steps
        self.vllm.forget_fit()
        self._elapse(steps, step_ps, increment_ps)

    def _steps_that_fit(self, max_steps: int) -> int:
        """Return the number of steps, at most `max_steps`, for which the free blocks suffice."""
        block = self.profile.block_tokens
        free = self.vllm.kv_cache_manager.block_pool.get_num_free_blocks()
        last = [block - 1 - (r.num_computed_tokens - 1) % block for r in self.vllm.running]
        """Free slots in the last block of each turn."""

        def needed(steps: int) -> int:
            return sum(-(-max(steps - left, 0) // block) for left in last)

        fits = 0
        while fits < max_steps:
            middle = (fits + max_steps + 1) // 2
            if needed(middle) <= free:
                fits = middle
            else:
                max_steps = middle - 1
        return fits

    def _elapse(self, steps: int, first_ps: int, increment_ps: int) -> None:
        self._known_ps = self.now_ps + duration_ps(steps - 1, first_ps, increment_ps)
        self.now_ps += duration_ps(steps, first_ps, increment_ps)
        self._ended_ps = self.now_ps
        self.steps += steps


def _longest(profile: Profile) -> int:
    """Return vLLM's `max_model_len`: vLLM only starts if that many tokens fit."""
    return min(profile.max_model_len, profile.kv_blocks * profile.block_tokens)
