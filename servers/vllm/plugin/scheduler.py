"""The scheduler class for `--scheduler-cls`, which runs a policy inside stock vLLM.

In: the plug-in's options (`servers.vllm.plugin.settings`), and the session and `vllm_xargs` of each
request (`servers.vllm.plugin.request_tags`). Out: engine events as JSONL; `queue_s`, `hit_tokens`,
`pinned_hit` and `preemptions` of each turn as `kv_transfer_params` of the response.
docs/design/vllm-plugin.md describes which methods of vLLM it overrides and why.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

from servers.basics.errors import UnsupportedVllm
from servers.policies.base import Policy
from servers.policies.base import Request as View
from servers.policies.runner import PolicyRunner
from servers.tool_names import tools_of_answer
from servers.vllm.plugin.compatibility import check_scheduler
from servers.vllm.plugin.event_log import EventLog
from servers.vllm.plugin.known_prompts import KnownPrompts
from servers.vllm.plugin.kv_manager import (
    Blocks,
    ReclaimingKVManager,
    has_states,
    last_states,
    retain_blocks,
    unhash_uncomputed,
)
from servers.vllm.plugin.metrics import Metrics
from servers.vllm.plugin.policy_guard import PolicyGuard
from servers.vllm.plugin.request_tags import VllmTurn, answer_of, read_tags
from servers.vllm.plugin.settings import Options, check
from servers.vllm.plugin.step_observer import StepObserver
from servers.vllm.plugin.waiting_queue import AdmittedRequests, RankedRequests

FINISHED = frozenset(
    getattr(RequestStatus, name)
    for name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
    if hasattr(RequestStatus, name)
)
COMPUTED_TOKENS = attrgetter("num_computed_tokens")
OUTPUT_PLACEHOLDERS = attrgetter("num_output_placeholders")

logger = init_logger("vllm.turnstile")


def monotonic_ps() -> int:
    return time.monotonic_ns() * 1000


class TurnstileScheduler(AsyncScheduler):  # type: ignore[misc]
    clock_ps: Callable[[], int] = staticmethod(monotonic_ps)
    wall_clock_s: Callable[[], float] = staticmethod(time.time)
    """The clock of vLLM's arrival times."""
    kv_cache_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_scheduler(AsyncScheduler, vllm.__version__)
        super().__init__(*args, **kwargs)
        self._kv_blocks = self.kv_cache_config.num_blocks - 1
        """Without vLLM's null block."""
        self._kv_tokens = self._tokens_of_kv()
        self._options = self._read_options()
        self._observer: StepObserver | None = None
        policy = self._read_policy(self._kv_tokens)
        self._refuse_settings(policy)
        self.turns: dict[str, VllmTurn] = {}
        self._arrivals = 0
        self._hash_tokens = int(getattr(self, "hash_block_size", None) or self.block_size)
        self._known_prompts = KnownPrompts(self._hash_tokens)
        self._loading: set[str] = set()
        """Requests whose KV a connector loads."""
        managers = self.kv_cache_manager.coordinator.single_type_managers
        self._has_states = any(map(has_states, managers))
        self._prompts: dict[str, Request] = {}
        """Admitted requests whose prompts are not computed, if layers have states."""
        self._log = self._open_log()
        self._logs_decisions = logger.isEnabledFor(logging.DEBUG)
        self._stock_manager = manager = self.kv_cache_manager
        self.runner: PolicyRunner[VllmTurn, Blocks] = PolicyRunner(
            policy,
            retain_blocks=self._retain_blocks,
            release_blocks=manager.block_pool.free_blocks,
            emit=self._emit,
            idle_s=self._options.idle_s or math.inf,
            on_program_end=self._count_program,
        )
        self.guard = (
            PolicyGuard(policy, self.runner.rerank_all) if self._tolerates_failures() else None
        )
        self._metrics = self._make_metrics() if self.log_stats else None
        self._reclaiming_manager = ReclaimingKVManager(
            self, self.runner, self.turns, self._loading, self._admitted, self._next_turn
        )
        manages = self._reclaiming_manager
        queue = self.runner, self.turns, self._watch_allocations, manages.is_refused
        self.waiting = (
            AdmittedRequests(*queue, candidate=self._candidate)
            if self.runner.admits
            else RankedRequests(*queue)
        )
        # Only under this policy does vLLM preempt turns other than the one admitted last.
        self.policy = SchedulingPolicy.PRIORITY
        self._held_back: bool | None = None
        """Whether the policy held back all waiting turns of this step; False once one is admitted,
        and None before the policy is asked."""
        self._declined: tuple[int, int | None] | None = None
        """Number of events and wake-up time when the policy last declined to displace a turn."""
        self._declined_for: tuple[VllmTurn, bool, int | None, list[Request]] | None = None
        """The turn for which it declined and whether it was pinned, wake-up time, and the running
        turns."""

    def _read_options(self) -> Options:
        return check(self.vllm_config)

    def _read_policy(self, kv_tokens: int) -> Policy:
        policy, learned = self._options.make_policy(self.vllm_config, kv_tokens)
        self._observer = None if learned is None else StepObserver(learned)
        return policy

    def _tolerates_failures(self) -> bool:
        """Return whether the server continues if the policy raises an exception."""
        return True

    def _tokens_of_kv(self) -> int:
        """Return the tokens of KV that the device holds. With several groups of layers it is vLLM's
        measure: the number of turns of the maximum length that fit, times that length."""
        if len(self.kv_cache_config.kv_cache_groups) == 1:
            return int(self._kv_blocks * self.block_size)
        turns = get_max_concurrency_for_kv_cache_config(self.vllm_config, self.kv_cache_config)
        share = self._kv_blocks / self.kv_cache_config.num_blocks
        return int(turns * share * self.max_model_len)

    def _open_log(self) -> EventLog:
        return EventLog(self._options.events)

    def _make_metrics(self) -> Metrics:
        model, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        return Metrics(
            self.runner,
            self.guard,
            self._kv_blocks,
            model.served_model_name,
            getattr(parallel, "data_parallel_index", parallel.data_parallel_rank),
        )

    def _emit(self, t: float, event: str, turn: VllmTurn, fields: dict[str, Any]) -> None:
        self._log.write(t, event, turn, fields)
        if self._metrics is not None:
            self._metrics.count(event, fields)
        if self._logs_decisions:
            name, program_id = self.runner.policy.name, turn.view.program_id
            logger.debug("%s: %s turn %d: %s %s", name, program_id, turn.number, event, fields)

    def _count_program(self, program_s: float) -> None:
        if self._metrics is not None:
            self._metrics.count_program(program_s)

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        if self._metrics is not None:
            self._metrics.update(idle=not self.turns)
        return super().make_stats(*args, **kwargs)

    def _refuse_settings(self, policy: Policy) -> None:
        displaces = type(policy).displaced is not Policy.displaced
        if displaces and not hasattr(self, "reset_preempted_req_ids"):
            raise UnsupportedVllm(
                f"vLLM {vllm.__version__} is not supported by {policy.name}: it cannot preempt a "
                "running turn between steps; use 0.28 or later"
            )

    # Arrivals and ends --------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self.runner.now_ps = self.clock_ps()
            turn = self.turns[request.request_id] = self._turn(request)
            self._replay_answer(request)
            request.priority = 0
            if turn.tags.ended is not None:
                self.runner.end_program(turn.tags.ended)
            turn.arrive_with(request.block_hashes, self._hash_tokens)
            self.runner.arrived(turn)
            turn.block_hashes = ()
        super().add_request(request)

    def _replay_answer(self, request: Request) -> None:
        """Let model runner V2 generate the answer that the client sent, if vLLM was started with
        `--enable-trace-replay`. With V1, `servers.vllm.plugin.recorded_answers` does."""
        model, params = self.vllm_config.model_config, request.sampling_params
        if params is None or not getattr(model, "enable_trace_replay", False):
            return
        if answer := answer_of(params.extra_args, model.get_vocab_size()):
            params.trace_decode_token_ids = answer

    def _turn(self, request: Request) -> VllmTurn:
        self._arrivals += 1
        xargs = request.sampling_params and request.sampling_params.extra_args
        tags = read_tags(xargs, getattr(request, "session_id", None))
        by_prompt = self._options.conversations and tags.program_id is None and not tags.is_internal
        if by_prompt:
            tokens, hashes = request.num_prompt_tokens, request.block_hashes
            tags = tags._replace(program_id=self._known_prompts.program_of(tokens, hashes))
        now_s = self.runner.now_s
        arrival_s = min(now_s, request.arrival_time + (now_s - self.wall_clock_s()))
        view = View(
            id=self._arrivals,
            program_id=tags.program_id or f"turn {self._arrivals}",
            index=0,
            arrival_s=arrival_s,
            program_arrival_s=arrival_s,
            prompt_tokens=request.num_prompt_tokens,
            is_last=tags.is_last,
        )
        return VllmTurn(request.request_id, view, tags, by_prompt)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        turn = self.turns.get(request.request_id)
        if turn is None:
            return super()._free_request(request, *args, **kwargs)
        self.runner.now_ps = self.clock_ps()
        self.waiting.remove_request(request)
        self._loading.discard(request.request_id)
        turn.view.output_tokens = request.num_output_tokens
        text = self._answer(request, turn)
        if request.status in FINISHED or self._stopped_by_client(request, text):
            tools = turn.tags.tools
            if tools is None:
                cut = request.status is not RequestStatus.FINISHED_STOPPED
                tools = tools_of_answer(text, cut=cut or not text)
            turn.view.tools = tools
            # The last sampled token has no KV.
            self.runner.finished(turn, request.num_tokens - 1)
        else:
            self.runner.aborted(turn)
        if turn.by_prompt:
            tokens, hashes = request.num_prompt_tokens, request.block_hashes
            self._known_prompts.turn_ended(turn.program_id, tokens, hashes)
        del self.turns[request.request_id]
        self._drop_kept(turn)
        result = super()._free_request(request, *args, **kwargs)
        timings = _server_timings(turn, request)
        if isinstance(result, tuple):
            return ({**(result[0] or {}), **timings}, *result[1:])
        return {**(result or {}), **timings}

    def _answer(self, request: Request, turn: VllmTurn) -> str:
        """Return the generated text with its special tokens, since they may mark tool calls; "" if
        neither tools nor stop strings are searched for, or without a tokenizer."""
        stops = request.sampling_params and request.sampling_params.stop
        tokenizer = getattr(self.structured_output_manager, "tokenizer", None)
        if tokenizer is None or (turn.tags.tools is not None and not stops):
            return ""
        return str(tokenizer.decode(list(request.output_token_ids), skip_special_tokens=False))

    def _stopped_by_client(self, request: Request, text: str) -> bool:
        """Return whether the answer ended at a `stop` string. vLLM's front end detects these and
        then aborts the request in the engine."""
        stops = request.sampling_params and request.sampling_params.stop
        if request.status is not RequestStatus.FINISHED_ABORTED or not stops:
            return False
        return any(stop in text for stop in ([stops] if isinstance(stops, str) else stops))

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Release all pins first, since vLLM refuses while any block is in use."""
        self.runner.now_ps = self.clock_ps()
        for active in self.runner.pins:
            self.runner.unpin(active.pin.program_id, "reset")
        return bool(super().reset_prefix_cache(*args, **kwargs))

    def shutdown(self) -> None:
        super().shutdown()
        self._log.close()

    # One step -----------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        runner, queue, observer = self.runner, self.waiting, self._observer
        begun_s = 0.0 if observer is None else time.monotonic()
        runner.now_ps = self.clock_ps()
        if runner.now_ps >= runner.steady_until_ps:
            self._reclaiming_manager.settled = False
            if self.guard is not None:
                self.guard.begin_step()
            runner.start_step(self._batch_tokens)
        self._held_back = None
        if runner.displaces and self.running and self.may_displace():
            self._displace()
            if not queue.displaced:
                runner.requeue_skipped()
        if self._reclaiming_manager.running_turns_fit():
            self.kv_cache_manager = self._stock_manager
        else:
            self._watch_allocations()
        queue.in_step = True
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.kv_cache_manager = self._stock_manager
            queue.in_step = False
        if runner.admits:
            if self._held_back and self._metrics is not None:
                self._metrics.count_held_back()
            if runner.waiting.skipped:
                runner.requeue_skipped()
        displaced, queue.displaced = queue.displaced, None
        if displaced:
            queue.prepend_requests(displaced)
        if self._prompts:
            self._keep_states()
        if observer is not None:
            observer.scheduled(output, begun_s, self.requests)
        return output

    def _keep_states(self) -> None:
        """Let turns whose prompts this step completes keep the states that a pin needs, if the
        policy has ever pinned."""
        manager = self._stock_manager
        for request_id, request in list(self._prompts.items()):
            if request.num_computed_tokens >= request.num_tokens:
                del self._prompts[request_id]
                if self.runner.has_pinned:
                    kept = self.turns[request_id].kept = last_states(manager, request)
                    manager.block_pool.touch(kept)

    def _drop_kept(self, turn: VllmTurn) -> None:
        self._prompts.pop(turn.request_id, None)
        if turn.kept:
            self._stock_manager.block_pool.free_blocks(turn.kept)
            turn.kept = []

    def _retain_blocks(self, turn: VllmTurn, whole_request: bool) -> tuple[Blocks, int]:
        self._drop_kept(turn)
        request = self.requests[turn.request_id]
        return retain_blocks(self._stock_manager, request, whole_request)

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if self._observer is not None:
            self._observer.ended(scheduler_output)
        return super().update_from_output(scheduler_output, *args, **kwargs)

    def _batch_tokens(self) -> int:
        running = self.running
        return int(sum(map(COMPUTED_TOKENS, running)) - sum(map(OUTPUT_PLACEHOLDERS, running)))

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        turn = self.turns[request.request_id]
        turn.view.output_tokens = request.num_output_tokens
        request.priority = 0
        unhash_uncomputed(self._stock_manager, request)
        self._drop_kept(turn)
        self.runner.preempted(turn)
        super()._preempt_request(request, *args, **kwargs)

    def _watch_allocations(self) -> None:
        """Use the reclaiming manager for the rest of the step, in which an allocation may fail or
        admit a turn."""
        self.kv_cache_manager = self._reclaiming_manager

    def _select_waiting_queue_for_scheduling(self) -> Any:
        """Prefer skipped turns in vLLM before 0.32, as its policy fcfs does."""
        self._watch_allocations()
        return self.skipped_waiting or self.waiting or None

    def _admitted(self, request: Request, kwargs: dict[str, Any]) -> None:
        """Report an admission. After a load, vLLM allocates blocks for the turn a second time."""
        turn = self.turns[request.request_id]
        if turn.view.id not in self.runner.queued:
            if request.request_id in self._loading:
                self._loading.discard(request.request_id)
                self.runner.record("loaded", turn)
            return
        external = kwargs.get("num_external_computed_tokens", 0)
        cached = kwargs.get("num_new_computed_tokens", 0) + external
        if turn.admitted_s is None:
            turn.admitted_s, turn.hit_tokens = self.runner.now_s, cached
        if self._has_states:
            self._prompts[request.request_id] = request
        self._held_back = False
        self.runner.admitted(turn, request.num_tokens, cached, external)
        if kwargs.get("delay_cache_blocks"):
            self._loading.add(request.request_id)
            self.runner.record("loading", turn, tokens=external)

    def _next_turn(self) -> VllmTurn | None:
        """Return the turn to admit next; raise IndexError if none waits."""
        return self._candidate() if self.runner.admits else self.runner.head()

    def _candidate(self) -> VllmTurn | None:
        """Return the waiting turn to admit next; None if the policy holds back all of them."""
        others = len(self.running) + len(self._loading)
        free = self._stock_manager.block_pool.get_num_free_blocks()
        turn = self.runner.candidate(others, self._kv_tokens * free // self._kv_blocks)
        if turn is None and self._held_back is None:
            self._held_back = len(self.waiting) > 0
        return turn

    def _displace(self) -> None:
        """Preempt the turns that the policy selects until the next turn to admit fits. This happens
        before the step, since vLLM cannot remove a turn from a batch. Displaced turns wait until
        the next step."""
        runner = self.runner
        turn = self._next_turn()
        if turn is None:
            self._declined = runner.events, runner.wake_ps
            return
        asked = turn, turn.view.pinned, runner.wake_ps, self.running[:]
        if asked == self._declined_for:
            self._declined = runner.events, runner.wake_ps
            return
        head = self.requests[turn.request_id]
        ready = head.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        if turn.is_internal or not ready or self._fits(head):
            return
        self.waiting.displaced = []
        while self.running and not self._fits(head):
            views = self._reclaiming_manager.running_views()
            worse = runner.policy.displaced(turn.view, list(views), runner.now_s)
            if worse is None:
                # After a turn was displaced, another turn may be the next one to admit.
                if not self.waiting.displaced:
                    self._declined, self._declined_for = (runner.events, runner.wake_ps), asked
                return
            self.running.remove(views[worse])
            drop_stale = getattr(self, "requires_kv_delivery", False)
            self._preempt_request(views[worse], time.monotonic(), drop_stale_output=drop_stale)

    def may_displace(self) -> bool:
        """Return whether the policy may displace a turn: it overrides `displaced`, turns wait, and
        an event has happened or `wake_s` has passed since it last declined or held all back."""
        declined = self._declined == (self.runner.events, self.runner.wake_ps)
        return self.runner.displaces and len(self.waiting) > 0 and not declined

    def _fits(self, head: Request) -> bool:
        # Before 0.32, vLLM has one limit for the slots of the model runner and for admissions.
        limit = "max_num_active_reqs"
        most = getattr(self, limit if hasattr(self, limit) else "max_num_running_reqs")
        return len(self.running) < most and self._reclaiming_manager.fits(head)


def _server_timings(turn: VllmTurn, request: Request) -> dict[str, Any]:
    """Return the fields that the response reports in addition to vLLM's."""
    admitted_s = turn.admitted_s
    return {
        "queue_s": None if admitted_s is None else admitted_s - turn.view.arrival_s,
        "hit_tokens": turn.hit_tokens,
        "pinned_hit": turn.pinned_hit,
        "preemptions": request.num_preemptions,
    }
