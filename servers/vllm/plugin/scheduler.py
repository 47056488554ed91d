"""Any policy of `servers.policies` inside stock vLLM: `--scheduler-cls` takes this class.

In: `servers.vllm.plugin.settings` for the server, `vllm_xargs` of each request
(`servers.vllm.plugin.request_tags`).
Out: engine events as JSONL; `queue_s`, `hit_tokens`, `pinned_hit` and `preemptions` of each turn
as `kv_transfer_params` of the response. docs/design/vllm-plugin.md says where it hooks in and why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

from servers.errors import InvalidEnvironment, UnsupportedVllm
from servers.policies.base import Policy
from servers.policies.base import Request as View
from servers.tool_names import tool_names
from servers.vllm.plugin.compatibility import check_scheduler
from servers.vllm.plugin.event_log import EventLog
from servers.vllm.plugin.kv_manager import Blocks, WatchedManager
from servers.vllm.plugin.request_tags import Turn, read_xargs
from servers.vllm.plugin.runner import PolicyRunner
from servers.vllm.plugin.settings import read_policy
from servers.vllm.plugin.waiting_queue import RankedRequests

FINISHED = frozenset(
    getattr(RequestStatus, name)
    for name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
    if hasattr(RequestStatus, name)
)


class TurnstileScheduler(AsyncScheduler):  # type: ignore[misc]
    clock: Callable[[], float] = staticmethod(time.monotonic)
    wall_clock: Callable[[], float] = staticmethod(time.time)
    """The clock of vLLM's arrival times."""
    kv_cache_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_scheduler(AsyncScheduler, vllm.__version__)
        policy = self._read_policy()
        super().__init__(*args, **kwargs)
        self._refuse_settings(policy)
        self._stock_manager, self._watched = self.kv_cache_manager, WatchedManager(self)
        self.turns: dict[str, Turn] = {}
        self._arrivals = 0
        self.loading: set[str] = set()
        """Requests whose KV a connector is fetching."""
        self._log = self._open_log()
        self.runner: PolicyRunner[Blocks] = PolicyRunner(
            policy, self._watched.release, self._log.write
        )
        self.waiting = RankedRequests(self.runner, self.turns, self._watch_allocations)
        # Of vLLM's two ways to preempt, only this one lets somebody else than the last go.
        self.policy = SchedulingPolicy.PRIORITY
        self._displaces = type(policy).displaced is not Policy.displaced
        self._nobody_displaced: tuple[int, int | None] | None = None

    def _read_policy(self) -> Policy:
        return read_policy(os.environ)

    def _open_log(self) -> EventLog:
        return EventLog(os.environ.get("TURNSTILE_EVENTS"))

    def _refuse_settings(self, policy: Policy) -> None:
        if self.policy is not SchedulingPolicy.FCFS:
            raise InvalidEnvironment(
                f"--scheduling-policy is {self.scheduler_config.policy}: leave it at fcfs, the "
                "order is Turnstile's"
            )
        if not self.kv_cache_manager.enable_caching:
            raise InvalidEnvironment(
                "prefix caching is off: start vLLM with --enable-prefix-caching"
            )
        displaces = type(policy).displaced is not Policy.displaced
        if displaces and not hasattr(self, "reset_preempted_req_ids"):
            raise UnsupportedVllm(
                f"vLLM {vllm.__version__} is not supported by {policy.name}: it cannot preempt a "
                "running turn between steps; that needs 0.28 or later"
            )

    # Arrivals and ends --------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self.runner.set_clock(self.clock())
            turn = self.turns[request.request_id] = self._turn(request)
            request.priority = 0
            self.runner.arrived(turn)
        super().add_request(request)

    def _turn(self, request: Request) -> Turn:
        self._arrivals += 1
        said = read_xargs(request.sampling_params and request.sampling_params.extra_args)
        now_s = self.runner.now_s
        arrival_s = min(now_s, request.arrival_time + (self.clock() - self.wall_clock()))
        view = View(
            id=self._arrivals,
            program_id=said.program_id or f"turn {self._arrivals}",
            index=0,
            arrival_s=arrival_s,
            program_arrival_s=arrival_s,
            prompt_tokens=request.num_prompt_tokens,
            is_last=said.is_last,
        )
        return Turn(view, said)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        turn = self.turns.get(request.request_id)
        if turn is None:
            return super()._free_request(request, *args, **kwargs)
        self.runner.set_clock(self.clock())
        self.waiting.remove_request(request)
        self.loading.discard(request.request_id)
        turn.view.output_tokens = request.num_output_tokens
        text = self._answer(request, turn)
        if request.status in FINISHED or self._stopped_by_client(request, text):
            tools = turn.said.tools
            turn.view.tools = tool_names(text) if tools is None else tools
            # The last token out has no KV.
            self.runner.finished(
                turn, request.num_tokens - 1, lambda whole: self._watched.hold(request, whole)
            )
        else:
            self.runner.aborted(turn)
        del self.turns[request.request_id]
        result = super()._free_request(request, *args, **kwargs)
        report = _report(turn, request)
        if isinstance(result, tuple):
            return ({**(result[0] or {}), **report}, *result[1:])
        return {**(result or {}), **report}

    def _answer(self, request: Request, turn: Turn) -> str:
        """What it generated, as far as somebody has to read it."""
        stops = request.sampling_params and request.sampling_params.stop
        tokenizer = getattr(self.structured_output_manager, "tokenizer", None)
        if tokenizer is None or (turn.said.tools is not None and not stops):
            return ""
        return str(tokenizer.decode(list(request.output_token_ids)))

    def _stopped_by_client(self, request: Request, text: str) -> bool:
        """A `stop` string is found outside the engine, which then aborts the request here."""
        stops = request.sampling_params and request.sampling_params.stop
        if request.status is not RequestStatus.FINISHED_ABORTED or not stops:
            return False
        return any(stop in text for stop in ([stops] if isinstance(stops, str) else stops))

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """vLLM refuses while anybody holds a block, so pins go first."""
        self.runner.set_clock(self.clock())
        for held in self.runner.pins.held():
            self.runner.unpin(held.pin.program_id, "reset")
        return bool(super().reset_prefix_cache(*args, **kwargs))

    def shutdown(self) -> None:
        super().shutdown()
        self._log.close()

    # One step -----------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        runner = self.runner
        runner.set_clock(self.clock())
        runner.start_step(self._batch_tokens)
        if self.running and self.may_displace():
            self._displace()
        if self._watched.running_turns_fit():
            self.kv_cache_manager = self._stock_manager
        else:
            self._watch_allocations()
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.kv_cache_manager = self._stock_manager
        aside, self.waiting.aside = self.waiting.aside, None
        if aside:
            self.waiting.prepend_requests(aside)
        return output

    def _batch_tokens(self) -> int:
        return sum(r.num_computed_tokens - r.num_output_placeholders for r in self.running)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        turn = self.turns[request.request_id]
        turn.view.output_tokens = request.num_output_tokens
        request.priority = 0
        self._watched.unhash_uncomputed(request)
        self.runner.preempted(turn)
        super()._preempt_request(request, *args, **kwargs)

    def _watch_allocations(self) -> None:
        """From here on in this step an allocation may fail, or admit a turn."""
        self.kv_cache_manager = self._watched

    def _select_waiting_queue_for_scheduling(self) -> Any:
        """vLLM before 0.32: turns that were not ready go first, as with its policy fcfs."""
        self._watch_allocations()
        return self.skipped_waiting or self.waiting or None

    def admitted(self, request: Request, given: dict[str, Any]) -> None:
        turn = self.turns[request.request_id]
        if turn.view.id not in self.runner.queued:
            if request.request_id in self.loading:
                self.loading.discard(request.request_id)
                self.runner.loaded(turn)
            return
        external = given.get("num_external_computed_tokens", 0)
        cached = given.get("num_new_computed_tokens", 0) + external
        self.runner.admitted(turn, request.num_tokens, cached, external)
        if given.get("delay_cache_blocks"):
            self.loading.add(request.request_id)
            self.runner.loading(turn, external)

    def running_views(self) -> dict[View, Request]:
        """In order of admission."""
        views = {}
        for request in self.running:
            view = self.turns[request.request_id].view
            view.output_tokens = request.num_output_tokens
            views[view] = request
        return views

    def _displace(self) -> None:
        """Preempt for the head of the queue whom the policy names, until the head fits. Before the
        step, since vLLM cannot take back a turn that it has put into the batch; whoever goes comes
        back in the next step at the earliest."""
        runner = self.runner
        head = self.waiting.peek_request()
        ready = head.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        nobodys = self.turns[head.request_id].said.nobodys
        if nobodys or not ready or self._fits(head):
            return
        self.waiting.aside = []
        while self.running and not self._fits(head):
            views = self.running_views()
            turn = self.turns[head.request_id]
            worse = runner.policy.displaced(turn.view, list(views), runner.now_s)
            if worse is None:
                self._nobody_displaced = (runner.events, runner.wake_ps)
                return
            self.running.remove(views[worse])
            kept = getattr(self, "requires_kv_delivery", False)
            self._preempt_request(views[worse], time.monotonic(), drop_stale_output=kept)

    def may_displace(self) -> bool:
        """Unless the last answer was nobody, and nothing has happened since."""
        last = self._nobody_displaced == (self.runner.events, self.runner.wake_ps)
        return self._displaces and bool(self.waiting) and not last

    def _fits(self, head: Request) -> bool:
        return len(self.running) < self.max_num_running_reqs and self._watched.fits(head)


def _report(turn: Turn, request: Request) -> dict[str, Any]:
    """What the client learns of its turn, besides what vLLM tells it."""
    admitted_s = turn.admitted_s
    return {
        "queue_s": None if admitted_s is None else admitted_s - turn.view.arrival_s,
        "hit_tokens": turn.hit_tokens,
        "pinned_hit": turn.pinned_hit,
        "preemptions": request.num_preemptions,
    }
