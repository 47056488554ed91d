"""Checks that a policy written by somebody else keeps the contract of `base.Policy`.

In: a class, and the keyword arguments that it will get. Out: nothing, or an `InvalidPolicy` whose
one line names the method and what it should look like. Signatures are compared first; then a short
scenario of three programs (a pinned return, a preemption, an overlap, an abort, unknown ends) is
played and every decision is checked.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from servers.errors import InvalidPolicy
from servers.policies.arguments import arguments_text
from servers.policies.base import Costs, Future, Oracle, Pin, Policy, Request, Retention
from servers.registry import NAME

EVENTS = (
    "arrived",
    "scheduled",
    "preempted",
    "finished",
    "aborted",
    "pinned",
    "unpinned",
    "program_ended",
)
DECISIONS = (
    "rank",
    "rank_changed",
    "admit",
    "victim",
    "displaced",
    "reclaim",
    "review",
    "wake_s",
)
ANSWERS = ("run", "skip", "stop")
COSTS = Costs(
    prefill_s=lambda tokens: tokens / 5000,
    kv_tokens=100_000,
    decode_step_s=lambda turns, context_tokens: 0.01 + turns * 1e-4 + context_tokens * 1e-7,
)
FREE_TOKENS = 90_000
HOUR = (71.0, 72.0, 80.0, 200.0, 3671.0)
"""Times in seconds at which a turn that waits from 71 s on must be admitted at the latest."""


def check(policy: type[Policy], arguments: Mapping[str, Any] | None = None) -> None:
    """Raise InvalidPolicy unless the policy, built with these arguments, fulfils the contract."""
    _check_methods(policy)
    ContractScenario(policy, arguments or {}).play()


def check_class(found: object, path: str) -> type[Policy]:
    """Return the object found at `path`; raise InvalidPolicy unless it is a subclass of Policy."""
    if not isinstance(found, type):
        raise InvalidPolicy(f"{path}: is not a class; derive one from servers.policies.base.Policy")
    if not issubclass(found, Policy):
        raise InvalidPolicy(
            f"{path}: is not a policy; derive a class from servers.policies.base.Policy"
        )
    return found


def _check_methods(policy: type[Policy]) -> None:
    label = policy.__qualname__
    name = getattr(policy, "name", None)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise InvalidPolicy(
            f'{label}.name is {name!r}: set name = "my-policy" on the class; letters, digits, '
            "dots, dashes and underscores, since run folders are named after it"
        )
    for method in (*EVENTS, *DECISIONS):
        expected, found = getattr(Policy, method), getattr(policy, method)
        if not callable(found) or inspect.iscoroutinefunction(found):
            raise InvalidPolicy(
                f"{label}.{method} must be a plain method: def {_signature(method)}"
            )
        try:
            inspect.signature(found).bind(*inspect.signature(expected).parameters)
        except TypeError as error:
            raise InvalidPolicy(
                f"{label}.{method}{inspect.signature(found)} does not match the contract "
                f"({error}): {_signature(method)}"
            ) from None
    if policy.review is not Policy.review and not policy.reviews_pins:
        raise InvalidPolicy(f"{label}.review is never called: set reviews_pins = True on the class")


def _signature(method: str) -> str:
    return f"def {method}{inspect.signature(getattr(Policy, method))}"


class ContractScenario:
    """Calls a policy with the events and decisions of three programs, and checks each result."""

    def __init__(self, policy: type[Policy], arguments: Mapping[str, Any]) -> None:
        self._label = policy.__qualname__
        given = arguments_text(sorted(arguments.items()))
        costs = (
            replace(COSTS, reload_s=lambda tokens: tokens / 50_000)
            if "tier" in policy.needs
            else COSTS
        )
        try:
            self._policy = policy(costs, **arguments)
        except ValueError as error:
            raise InvalidPolicy(f"{self._label}{given}: {error}") from None
        except (Exception, SystemExit) as error:
            raise InvalidPolicy(
                f"{self._label}{given} raised {type(error).__name__}: {error}; an engine calls it "
                "with costs and these arguments, so all other parameters need defaults"
            ) from None
        if self._policy.reclaim_when not in ("stuck", "pressure"):
            raise InvalidPolicy(
                f"{self._label}.reclaim_when is {self._policy.reclaim_when!r}: "
                'use "stuck" or "pressure"'
            )
        if not hasattr(self._policy, "costs"):
            raise InvalidPolicy(f"{self._label}.__init__ must call super().__init__(costs)")

    def play(self) -> None:
        first = Request(0, "a", 0, 0.0, 0.0, 1000, is_last=False)
        other = Request(1, "b", 0, 0.5, 0.5, 3000)
        self._arrive(first)
        self._arrive(other)
        self._admit(first, 1.0)
        self._admit(other, 1.0)
        self._decide([], [first, other], [], 1.5)
        self._call("preempted", other, 2.0)
        other.preempted = True
        first.output_tokens, first.tools = 50, ("pytest",)
        pin = self._finish(first, 3.0)
        second = Request(2, "a", 1, 4.0, 0.0, 1500, pinned=pin is not None)
        overlapping = Request(3, "a", 2, 4.0, 0.0, 1500)
        cancelled = Request(4, "c", 0, 4.5, 4.5, 800)
        for request in (second, overlapping, cancelled):
            self._arrive(request)
        pins = [] if pin is None else [pin]
        self._decide([other, second, overlapping, cancelled], [], pins, 5.0)
        self._call("aborted", cancelled, 5.5)
        self._admit(second, 6.0)
        if pin is not None:
            self._call("unpinned", pin, 6.0)
        self._admit(other, 6.0)
        self._decide([overlapping], [second, other], [], 60.0)
        self._admit(overlapping, 61.0)
        for request in (second, overlapping, other):
            request.output_tokens = 20
            self._finish(request, 62.0)
        for program_id in "abc":
            self._call("program_ended", program_id, 63.0)
        self._check_admits()

    def _arrive(self, request: Request) -> None:
        if isinstance(self._policy, Oracle):
            self._call("foresee", request, Future(1.0, 100, 100))
        self._call("arrived", request, request.arrival_s)

    def _admit(self, request: Request, now_s: float) -> None:
        self._call("scheduled", request, now_s, 0)
        request.pinned = request.preempted = False

    def _finish(self, request: Request, now_s: float) -> Pin | None:
        retention = self._call("finished", request, now_s)
        if not isinstance(retention, Retention):
            self._reject("finished", retention, "FREE or pin(ttl_s), from servers.policies.base")
        if retention.kind == "free":
            return None
        tokens = request.prompt_tokens + request.output_tokens
        pin = Pin(request, tokens, now_s, now_s + retention.ttl_s)
        self._call("pinned", pin, now_s)
        return pin

    def _decide(
        self, waiting: list[Request], running: list[Request], pins: list[Pin], now_s: float
    ) -> None:
        ranks = [self._rank(request, now_s) for request in waiting]
        for request in waiting:
            answer = self._call("admit", request, FREE_TOKENS, now_s)
            if answer not in ANSWERS:
                self._reject("admit", answer, '"run", "skip" or "stop"')
        try:
            ranks.sort()
        except TypeError as error:
            self._reject("rank", ranks, f"tuples that can be compared with each other ({error})")
        if running:
            self._check_is_running("victim", self._call("victim", running, now_s), running)
            for head in waiting:
                displaced = self._call("displaced", head, running, now_s)
                if displaced is not None:
                    self._check_is_running("displaced", displaced, running)
        for request in (*running, *waiting):
            self._check_are_pins("reclaim", self._call("reclaim", pins, request, now_s), pins)
        self._check_are_pins("review", self._call("review", pins, 4000, now_s), pins)
        wake_s = self._call("wake_s", now_s)
        if wake_s is not None and not _is_number(wake_s):
            self._reject("wake_s", wake_s, "a time in seconds, or None for never")

    def _check_admits(self) -> None:
        """Refuse a policy that lets programs run only one at a time, whatever memory is free."""
        running = Request(5, "d", 0, 70.0, 70.0, 1000)
        waiting = Request(6, "e", 0, 71.0, 71.0, 1000)
        self._arrive(running)
        self._admit(running, 70.0)
        self._arrive(waiting)
        answers = [self._call("admit", waiting, FREE_TOKENS, now_s) for now_s in HOUR]
        if "run" not in answers:
            self._reject(
                "admit",
                answers[-1],
                f'"run" within an hour for a turn of 1,000 tokens, with {FREE_TOKENS:,} of '
                f"{COSTS.kv_tokens:,} tokens free and one turn running",
            )

    def _rank(self, request: Request, now_s: float) -> tuple[Any, ...]:
        rank = self._call("rank", request, now_s)
        if not isinstance(rank, tuple) or not rank or not all(map(_is_number, rank)):
            self._reject("rank", rank, "a tuple of numbers that ends in request.id")
        if rank[-1] != request.id:
            self._reject("rank", rank, "a tuple that ends in request.id, so that no two are equal")
        self._call("rank_changed", request, now_s)
        second = self._call("rank", request, now_s)
        if second != rank:
            self._reject("rank", second, f"{rank} as in the call before: it must not change state")
        return tuple(rank)

    def _check_is_running(self, method: str, chosen: object, running: list[Request]) -> None:
        if not any(chosen is request for request in running):
            self._reject(method, chosen, "one of the requests in `running`")

    def _check_are_pins(self, method: str, result: Any, pins: list[Pin]) -> None:
        try:
            chosen = list(result)
        except TypeError:
            self._reject(method, result, "an iterable of items of `pins`")
        if any(all(item is not pin for pin in pins) for item in chosen):
            self._reject(method, chosen, "only items of `pins`")

    def _call(self, method: str, *args: object) -> Any:
        call: Callable[..., Any] = getattr(self._policy, method)
        requests = [arg for arg in args if isinstance(arg, Request)]
        before = [replace(request) for request in requests]
        try:
            result = call(*args)
        except (Exception, SystemExit) as error:
            raise InvalidPolicy(
                f"{self._label}.{method} raised {type(error).__name__}: {error}"
            ) from error
        for request, original in zip(requests, before, strict=True):
            for field in fields(Request):
                if getattr(request, field.name) != getattr(original, field.name):
                    raise InvalidPolicy(
                        f"{self._label}.{method} changed request.{field.name}: a policy must not "
                        "change requests"
                    )
        return result

    def _reject(self, method: str, result: object, expected: str) -> None:
        raise InvalidPolicy(
            f"{self._label}.{method} returned {result!r}; it must return {expected}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
