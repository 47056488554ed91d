"""vLLM's own scheduler in virtual time: the installed version, with our plug-in, under our clock.

`VirtualVllm` stands where `servers.sim.Engine` stands, and a step lasts what the same profile says;
but who runs, whose KV stays and what a prompt hits is decided by vLLM's `Scheduler` and KV manager.
Steps in which nothing can be decided are taken at once: every decode gets its tokens and blocks as
if it had been asked for one after the other, so that the outcome is the same to the digit. Contents
are known from the trace, so that a block's hash is its place in the tree of contents instead of a
hash of its tokens. Runs under vLLM's interpreter; one replica, no offload tier.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.request import Request, RequestStatus

from servers.policies.base import Future, Oracle, Policy
from servers.profiles import PS_PER_S, Profile
from servers.records import EventRecord
from servers.sim import Limits, Path, Phase, Segment, Submission, Usage, refuse_unfit
from servers.sim import Sequence as Served
from servers.sim.strides import lasts, steps_until
from servers.vllm.plugin.request_tags import Turn
from servers.vllm.plugin.scheduler import TurnstileScheduler
from servers.vllm.virtual_time.headless import answer, bare_scheduler, sampling

TOKEN = 7
"""Sampled each time: which one it is decides nothing."""

Hasher = Callable[[Request], list[bytes]]


class Contents:
    """Hashes of blocks, from where they lie in the tree of contents."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._hashes: dict[Segment, tuple[int, list[bytes]]] = {}

    def hasher(self, path: Path) -> Hasher:
        """What vLLM asks for the hashes of a request's new full blocks."""
        known: list[bytes] = []
        for segment, leave in path:
            begin, end = len(known) - segment.start, leave - segment.start
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


class Scheduler(TurnstileScheduler):
    """With a policy object, a clock and a reader of events instead of an environment's."""

    def __init__(self, *, policy: Policy, events: Any, clock: Callable[[], float], **given: Any):
        self._given_policy, self._given_events = policy, events
        self.clock = self.wall_clock = clock
        super().__init__(**given)

        self.foreseen: Future | None = None
        """Of the turn that arrives next; for bounds."""

    def _turn(self, request: Request) -> Turn:
        turn = super()._turn(request)
        policy = self.runner.policy
        if isinstance(policy, Oracle) and self.foreseen is not None:
            policy.foresee(turn.view, self.foreseen)
        return turn

    def _read_policy(self) -> Policy:
        return self._given_policy

    def _open_log(self) -> Any:
        return self._given_events


class VirtualVllm:
    """Submit turns, then `run`; `on_end` may submit more, not before its own time."""

    def __init__(
        self,
        policy: Policy,
        profile: Profile,
        limits: Limits,
        *,
        on_end: Callable[[Served], None],
        on_event: Callable[[EventRecord], None] | None = None,
        strides: bool = True,
    ) -> None:
        self.profile = profile
        self.now_ps = self.steps = self.strides = 0
        self.vllm = bare_scheduler(
            Scheduler,
            kv_blocks=profile.kv_blocks,
            max_num_seqs=limits.max_num_seqs,
            step_tokens=limits.step_tokens,
            block_tokens=profile.block_tokens,
            policy=policy,
            events=self,
            clock=lambda: self.now_ps / PS_PER_S,
        )
        self._runner = self.vllm.runner
        self._on_end = on_end
        self._on_event = on_event
        self._strides = strides
        self._contents = Contents(profile.block_tokens)
        self._due: list[tuple[int, int, Served]] = []
        """Arrivals by time; a turn that has arrived already is aborted."""
        self._serial = 0
        self._turns: dict[str, Served] = {}
        """By request id, which is the turn's number in order of arrival."""
        self._decoding: set[str] = set()
        self._ended: list[Served] = []

    def submit(self, submission: Submission, at_ps: int) -> Served:
        refuse_unfit(submission, self.profile)
        served = Served(submission, at_ps)
        self._push(at_ps, served)
        return served

    def abort(self, served: Served, at_ps: int) -> None:
        self._push(at_ps, served)

    def end_program(self, program_id: str) -> None:
        self._runner.end_program(program_id)

    def usage(self) -> Usage:
        pool = self.vllm.kv_cache_manager.block_pool
        return Usage(
            self.now_ps / PS_PER_S,
            self.profile.kv_blocks - pool.get_num_free_blocks(),
            self._runner.pins.blocks,
            len(self._runner.queued),
            len(self.vllm.running),
        )

    def run(self, programs: Iterable[object] = ()) -> None:
        """Until every submitted turn has ended. It is told of all programs at once."""
        for _ in programs:
            pass
        vllm, runner = self.vllm, self._runner
        while True:
            while self._due and self._due[0][0] <= self.now_ps:
                self._take(heapq.heappop(self._due)[2])
            told = runner.events
            output = vllm.schedule()
            self.strides += 1
            if output.num_scheduled_tokens:
                self._compute(output, steady=runner.events == told)
                continue
            answer(vllm, output, {})
            if runner.events != told:
                continue
            if not self._due:
                break
            self.now_ps = max(self.now_ps, self._due[0][0])
        if vllm.has_unfinished_requests():
            raise RuntimeError("turns wait, nothing runs and nothing will free memory")

    # What goes in -------------------------------------------------------------------------------

    def _push(self, at_ps: int, served: Served) -> None:
        self._serial += 1
        heapq.heappush(self._due, (at_ps, self._serial, served))

    def _take(self, served: Served) -> None:
        if not served.arrived:
            served.arrived = True
            key = str(len(self._turns) + 1)
            self._turns[key] = served
            self.vllm.foreseen = served.submission.future
            self.vllm.add_request(self._request(key, served))
        elif served.finished_ps is None:
            self.vllm.finish_requests(str(served.view.id), RequestStatus.FINISHED_ABORTED)
            self._report()

    def _request(self, key: str, served: Served) -> Request:
        submission = served.submission
        said: dict[str, Any] = {"tools": ",".join(submission.tools)}
        if submission.program_id:
            said["program_id"] = submission.program_id
        if submission.is_last is not None:
            said["is_last"] = int(submission.is_last)
        return Request(
            request_id=key,
            prompt_token_ids=[TOKEN] * submission.prompt_tokens,
            sampling_params=sampling(submission.output_tokens, **said),
            pooling_params=None,
            arrival_time=served.view.arrival_s,
            block_hasher=self._contents.hasher(submission.path),
        )

    # What comes out -----------------------------------------------------------------------------

    def write(self, t: float, event: str, turn: Turn, fields: dict[str, Any]) -> None:
        """An event of the plug-in."""
        served = self._turns[str(turn.view.id)]
        if event == "arrival":
            served.view, served.pinned_hit = turn.view, turn.pinned_hit
        elif event in ("waiting_to_running", "evicted_to_running"):
            served.admit(self.now_ps)
            if served.hits is None:
                served.hits = [("device", fields["hit_length"])]
        elif event == "preempted":
            served.preemptions += 1
            served.enter(Phase.PREEMPTED, self.now_ps)
            self._decoding.discard(str(turn.view.id))
        elif event in ("finished", "aborted"):
            served.close(self.now_ps, error="aborted" if event == "aborted" else None)
            self._decoding.discard(str(turn.view.id))
            self._ended.append(served)
        if self._on_event is not None:
            program_id, index = turn.view.program_id, turn.view.index
            self._on_event(
                EventRecord(t=t, event=event, program_id=program_id, turn=index, **fields)
            )

    def close(self) -> None:
        """vLLM shuts its scheduler down."""

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        for served in ended:
            self._on_end(served)

    # Steps --------------------------------------------------------------------------------------

    def _compute(self, output: Any, steady: bool) -> None:
        """One step; and more at once where the batch is decodes alone and none has just come or
        gone: then nothing is decided until `_stride` says."""
        tokens = context = pairs = 0
        sampled, first = {}, []
        for key, chunk in output.num_scheduled_tokens.items():
            request = self.vllm.requests[key]
            done = request.num_computed_tokens - chunk
            tokens += chunk
            if key in self._decoding:
                context += done + 1
                sampled[key] = TOKEN
                continue
            pairs += chunk * done + chunk * (chunk + 1) // 2
            if request.num_computed_tokens >= request.num_tokens:
                sampled[key] = TOKEN
                first.append(key)
        sequences = len(output.num_scheduled_tokens)
        step_ps = self.profile.step_ps(tokens, sequences, context, pairs)
        steady = steady and tokens == len(self._decoding) == len(self.vllm.running)
        self._elapse(1, step_ps, 0)
        answer(self.vllm, output, sampled)
        for key in first:
            served = self._turns[key]
            if served.first_token_ps is None:
                served.first_token_ps = self.now_ps
            if served.finished_ps is None:
                served.enter(Phase.DECODE, self.now_ps)
                self._decoding.add(key)
        if steady and not self._ended and self._strides and not self.vllm.may_displace():
            self._stride(step_ps)
        self._report()

    def _stride(self, last_ps: int) -> None:
        running, manager = self.vllm.running, self.vllm.kv_cache_manager
        more_ps = len(running) * self.profile.context_ps
        step_ps = last_ps + more_ps
        most = min(r.max_tokens - r.num_output_tokens for r in running) - 1
        changes = [self._runner.pins.next_expiry(), self._runner.wake_ps]
        changes += [self._due[0][0]] if self._due else []
        due_ps = min((at for at in changes if at is not None), default=None)
        if most < 1 or (due_ps is not None and due_ps <= self.now_ps):
            return
        if due_ps is not None:
            most = steps_until(due_ps - self.now_ps, most, step_ps, more_ps)
        steps = self._steps_that_fit(most)
        if not steps:
            return
        for request in running:
            request.append_output_token_ids([TOKEN] * steps)
            if manager.allocate_slots(request, steps) is None:
                raise RuntimeError(f"no blocks for {steps} tokens of {request.request_id}")
            request.num_computed_tokens += steps
        self._elapse(steps, step_ps, more_ps)

    def _steps_that_fit(self, most: int) -> int:
        """Of so many steps, how many the free blocks have room for."""
        block = self.profile.block_tokens
        free = self.vllm.kv_cache_manager.block_pool.get_num_free_blocks()
        last = [block - 1 - (r.num_computed_tokens - 1) % block for r in self.vllm.running]
        """Slots left in each last block."""

        def needed(steps: int) -> int:
            return sum(-(-max(steps - left, 0) // block) for left in last)

        fits = 0
        while fits < most:
            middle = (fits + most + 1) // 2
            if needed(middle) <= free:
                fits = middle
            else:
                most = middle - 1
        return fits

    def _elapse(self, steps: int, first_ps: int, more_ps: int) -> None:
        self.now_ps += lasts(steps, first_ps, more_ps)
        self.steps += steps
