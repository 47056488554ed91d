"""Checks that a policy written by somebody else keeps the contract of `base.Policy`.

In: a class, and the keyword arguments that it will get. Out: nothing, or an `InvalidPlugin` whose
one line names the method and what it should look like. Names and signatures are compared first;
then a short scenario of three programs (a pinned return, a preemption, an overlap, an abort,
unknown ends) is played and every decision is checked. After each event the ranks of waiting turns
are compared with those before it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from types import CodeType, FunctionType
from typing import Any

from servers.basics.errors import InvalidPlugin
from servers.basics.nearest import nearest
from servers.basics.registry import NAME
from servers.policies.arguments import arguments_text
from servers.policies.base import Costs, Future, Oracle, Pin, Policy, Rank, Request, Retention
from servers.policies.user_code import (
    NeverReturned,
    call_limit,
    is_ours,
    place,
    raised_in,
    roots_of,
)

EVENTS = (
    "arrived",
    "scheduled",
    "preempted",
    "finished",
    "aborted",
    "pinned",
    "unpinned",
    "program_ended",
    "woke",
)
DECISIONS = (
    "rank",
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


def check(
    policy: type[Policy], arguments: Mapping[str, Any] | None = None, *, tier: bool = False
) -> None:
    """Raise InvalidPlugin unless the policy, built with these arguments, fulfils the contract.
    `tier`: over an offload tier, as always if the policy needs one."""
    _check_methods(policy)
    _check_names(policy)
    try:
        with call_limit(roots_of(policy)):
            ContractScenario(policy, arguments or {}, tier or "tier" in policy.needs).play()
    except NeverReturned as late:
        raise InvalidPlugin(str(late)) from None


def check_class(found: object, path: str) -> type[Policy]:
    """Return the object found at `path`; raise InvalidPlugin unless it is a subclass of Policy."""
    if not isinstance(found, type):
        raise InvalidPlugin(f"{path}: is not a class; derive one from servers.policies.base.Policy")
    if not issubclass(found, Policy):
        raise InvalidPlugin(
            f"{path}: is not a policy; derive a class from servers.policies.base.Policy"
        )
    return found


def _check_methods(policy: type[Policy]) -> None:
    label = policy.__qualname__
    name = getattr(policy, "name", None)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise InvalidPlugin(
            f'{label}.name is {name!r}: set name = "my-policy" on the class; letters, digits, '
            "dots, dashes and underscores, since run folders are named after it"
        )
    for method in (*EVENTS, *DECISIONS):
        expected, found = getattr(Policy, method), getattr(policy, method)
        if not callable(found) or inspect.iscoroutinefunction(found):
            raise InvalidPlugin(
                f"{label}.{method} must be a plain method: def {_signature(method)}"
            )
        try:
            inspect.signature(found).bind(*inspect.signature(expected).parameters)
        except TypeError as error:
            raise InvalidPlugin(
                f"{label}.{method}{inspect.signature(found)} does not match the contract "
                f"({error}): {_signature(method)}"
            ) from None
    if policy.review is not Policy.review and not policy.reviews_pins:
        raise InvalidPlugin(f"{label}.review is never called: set reviews_pins = True on the class")


def _check_names(policy: type[Policy]) -> None:
    """Refuse a public name that neither an engine nor the class itself uses, if it is a method or
    is spelled like a name of the contract: `finnished`."""
    known = ["name", "costs", *(name for name in dir(Oracle) if not name.startswith("_"))]
    own = [cls for cls in policy.__mro__ if not is_ours(cls)]
    defined = {name: value for cls in reversed(own) for name, value in vars(cls).items()}
    functions = [value for value in defined.values() if isinstance(value, FunctionType)]
    used = {name for function in functions for name in _names_in(function.__code__)}
    aliased = [defined[name] for name in known if name in defined]
    for name, value in defined.items():
        if name.startswith("_") or name in {*known, *used} or value in aliased:
            continue
        close, where = nearest(name, known), ""
        if isinstance(value, FunctionType):
            where = f"{place(value.__code__, value.__code__.co_firstlineno)}: "
        elif not close:
            continue
        meant = f"did you mean {close}? If not, " if close else "if it is a helper, "
        raise InvalidPlugin(
            f"{where}{policy.__qualname__}.{name} is used neither by an engine nor by the class; "
            f"{meant}name it _{name}"
        )


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _signature(method: str) -> str:
    return f"def {method}{inspect.signature(getattr(Policy, method))}"


class ContractScenario:
    """Calls a policy with the events and decisions of three programs, and checks each result."""

    def __init__(self, policy: type[Policy], arguments: Mapping[str, Any], tier: bool) -> None:
        self._label = policy.__qualname__
        self._roots = roots_of(policy)
        self._waiting: dict[int, tuple[Request, Rank, bool, bool]] = {}
        """Each waiting turn with the rank that a queue has for it, and with `pinned` and
        `preempted` at the last event."""
        self._wake_s: float | None = None
        """What `wake_s` returned at the last event."""
        given = arguments_text(sorted(arguments.items()))
        costs = replace(COSTS, reload_s=lambda tokens: tokens / 50_000) if tier else COSTS
        try:
            self._policy = policy(costs, **arguments)
        except ValueError as error:
            raise InvalidPlugin(f"{self._label}{given}: {error}") from None
        except (Exception, SystemExit) as error:
            what = f"{self._label}{given} raised {type(error).__name__}: {error}"
            raise InvalidPlugin(
                f"{raised_in(error, self._roots) or what}; an engine calls it with costs and these "
                "arguments, so all other parameters need defaults"
            ) from None
        if self._policy.reclaim_when not in ("stuck", "pressure"):
            raise InvalidPlugin(
                f"{self._label}.reclaim_when is {self._policy.reclaim_when!r}: "
                'use "stuck" or "pressure"'
            )
        if not hasattr(self._policy, "costs"):
            raise InvalidPlugin(f"{self._label}.__init__ must call super().__init__(costs)")

    def play(self) -> None:
        first = Request(0, "a", 0, 0.0, 0.0, 1000, is_last=False)
        other = Request(1, "b", 0, 0.5, 0.5, 3000)
        self._arrive(first)
        self._arrive(other)
        self._admit(first, 1.0)
        self._admit(other, 1.0)
        self._decide([], [first, other], [], 1.5)
        other.preempted = True
        self._call("preempted", other, 2.0)
        self._wait(other, "preempted", 2.0)
        first.output_tokens, first.tools = 50, ("pytest",)
        pin = self._finish(first, 3.0)
        second = Request(2, "a", 1, 4.0, 0.0, 1500, pinned=pin is not None)
        overlapping = Request(3, "a", 2, 4.0, 0.0, 1500, pinned=pin is not None)
        cancelled = Request(4, "c", 0, 4.5, 4.5, 800)
        for request in (second, overlapping, cancelled):
            self._arrive(request)
        pins = [] if pin is None else [pin]
        self._decide([other, second, overlapping, cancelled], [], pins, 5.0)
        del self._waiting[cancelled.id]
        self._call("aborted", cancelled, 5.5)
        self._check_ranks("aborted", 5.5)
        self._admit(second, 6.0)
        if pin is not None:
            self._call("unpinned", pin, 6.0)
            overlapping.pinned = False
            self._check_ranks("unpinned", 6.0)
        self._admit(other, 6.0)
        self._decide([overlapping], [second, other], [], 60.0)
        self._admit(overlapping, 61.0)
        for request in (second, overlapping, other):
            request.output_tokens = 20
            self._finish(request, 62.0)
        for program_id in "abc":
            self._call("program_ended", program_id, 63.0)
        self._check_admits()
        self._check_order()

    def _arrive(self, request: Request) -> None:
        if isinstance(self._policy, Oracle):
            self._call("foresee", request, Future(1.0, 100, 100))
        self._call("arrived", request, request.arrival_s)
        self._wait(request, "arrived", request.arrival_s)

    def _wait(self, request: Request, method: str, now_s: float) -> None:
        rank = self._rank(request, now_s)
        self._waiting[request.id] = request, rank, request.pinned, request.preempted
        self._check_ranks(method, now_s)

    def _admit(self, request: Request, now_s: float) -> None:
        del self._waiting[request.id]
        self._call("scheduled", request, now_s, 0)
        request.pinned = request.preempted = False
        self._check_ranks("scheduled", now_s)

    def _finish(self, request: Request, now_s: float) -> Pin | None:
        retention = self._call("finished", request, now_s)
        self._check_ranks("finished", now_s)
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

    def _check_order(self) -> None:
        """Let turns wait while another program is served and time passes."""
        served = Request(7, "f", 0, 4000.0, 4000.0, 2000)
        self._arrive(served)
        for index, tokens in enumerate((5000, 300, 9000, 1200)):
            program = f"g{index}"
            self._arrive(Request(8 + index, program, 0, 4001.0 + index, 4001.0 + index, tokens))
        self._admit(served, 4010.0)
        served.output_tokens, served.tools = 400, ("pytest",)
        self._end_pin(self._finish(served, 4100.0), 4105.0)
        for number in range(2):
            self._arrive(Request(12 + number, "f", 1 + number, 4110.0, 4000.0, 3000))
        waiting = [request for request, *_ in self._waiting.values()]
        for request in waiting:
            self._admit(request, 4200.0)
            request.output_tokens = 30
            self._end_pin(self._finish(request, 4260.0), 4270.0)
        for program_id in sorted({request.program_id for request in waiting}):
            self._call("program_ended", program_id, 4280.0)

    def _end_pin(self, pin: Pin | None, now_s: float) -> None:
        if pin is not None:
            self._call("unpinned", pin, now_s)
            self._check_ranks("unpinned", now_s)

    def _rank(self, request: Request, now_s: float) -> tuple[Any, ...]:
        rank = self._call("rank", request, now_s)
        if not isinstance(rank, tuple) or not rank or not all(map(_is_number, rank)):
            self._reject("rank", rank, "a tuple of numbers that ends in request.id")
        if rank[-1] != request.id:
            self._reject("rank", rank, "a tuple that ends in request.id, so that no two are equal")
        second = self._call("rank", request, now_s)
        if second != rank:
            self._reject("rank", second, f"{rank} as in the call before: it must not change state")
        return tuple(rank)

    def _check_ranks(self, event: str, now_s: float) -> None:
        """Refuse ranks whose order changes although engines do not call `rank` again."""
        before_s, self._wake_s = self._wake_s, self._call("wake_s", now_s)
        wakes = any(wake_s not in (None, math.inf) for wake_s in (before_s, self._wake_s))
        compared: list[tuple[Rank, Rank]] = []
        changed = self._call("woke", now_s) if wakes or self._policy.reranks else ()
        for request, rank, *flags in list(self._waiting.values()):
            new = self._rank(request, now_s)
            again = changed is None or request.id in changed
            if again or flags != [request.pinned, request.preempted]:
                rank = new
            self._waiting[request.id] = request, rank, request.pinned, request.preempted
            for other, other_new in compared:
                if (rank < other) != (new < other_new):
                    raise InvalidPlugin(
                        f"{self._label}.rank returned {other} and {rank} when these turns began to "
                        f"wait, and {other_new} and {new} in another order after `{event}` at "
                        f"{now_s:g} s; engines keep the first ranks until wake_s, so let it return "
                        "the time of the change, or floor(now_s) + 1 for each second; if ranks "
                        "depend on other turns, set reranks = True"
                    )
            compared.append((rank, new))

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
            what = f"{self._label}.{method} raised {type(error).__name__}: {error}"
            raise InvalidPlugin(raised_in(error, self._roots) or what) from error
        for request, original in zip(requests, before, strict=True):
            for field in fields(Request):
                if getattr(request, field.name) != getattr(original, field.name):
                    raise InvalidPlugin(
                        f"{self._label}.{method} changed request.{field.name}: a policy must not "
                        "change requests"
                    )
        return result

    def _reject(self, method: str, result: object, expected: str) -> None:
        raise InvalidPlugin(
            f"{self._label}.{method} returned {result!r}; it must return {expected}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
