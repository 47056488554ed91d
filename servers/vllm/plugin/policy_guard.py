"""Keeps a server in service when its policy raises an exception.

In: a policy. Its methods are replaced by ones that catch exceptions. Out: their number by method,
and one log message with a traceback per method and kind of exception.

A failed event (`arrived`, `scheduled`, …) is lost to the policy, and a turn whose `finished` failed
is not pinned. If a decision fails, those of stock vLLM are taken for the rest of the step: turns
are admitted in order of arrival, and no KV is pinned. The next step asks the policy again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from vllm.logger import init_logger

from servers.policies.base import FREE, Policy, Retention

EVENTS = ("arrived", "scheduled", "preempted", "aborted", "pinned", "unpinned", "program_ended")
LOGGED = (float, int, bool, str, type(None))
"""Types of the inputs of a decision. NumPy's numbers are of others."""
MAX_LOGGED = 100
"""Limit of the log messages."""

logger = init_logger("vllm.turnstile")


class PolicyGuard:
    def __init__(self, policy: Policy, on_failed_decision: Callable[[], None]) -> None:
        """`on_failed_decision` is called when stock vLLM's decisions begin and cease to apply, and
        must rank the waiting turns again."""
        self.failures: Counter[str] = Counter()
        """Number of exceptions, by method."""
        self._name = policy.name
        self._on_failed_decision = on_failed_decision
        self._stock_decides = False
        """Whether a decision failed in this step."""
        self._logged: set[tuple[str, type[Exception]]] = set()
        self.methods: list[str] = []
        """Those whose exceptions are caught: the ones that the policy overrides."""
        stock = Policy(policy.costs)
        for name in (*EVENTS, "finished", *CHECKED):
            if getattr(type(policy), name) is not getattr(Policy, name):
                self.methods.append(name)
                method = getattr(policy, name)
                guarded: Callable[..., Any]
                if name in EVENTS:
                    guarded = self._event(name, method)
                elif name == "finished":
                    guarded = self._finished(method)
                else:
                    guarded = self._decision(name, method, getattr(stock, name), CHECKED[name])
                setattr(policy, name, guarded)

    def begin_step(self) -> None:
        if self._stock_decides:
            self._stock_decides = False
            self._on_failed_decision()

    def _event(self, name: str, method: Callable[..., None]) -> Callable[..., None]:
        def event(*args: Any) -> None:
            try:
                method(*args)
            except Exception as error:
                self._failed(name, error)

        return event

    def _finished(self, method: Callable[..., Any]) -> Callable[..., Retention]:
        def finished(*args: Any) -> Retention:
            try:
                retention = method(*args)
                if not isinstance(retention, Retention):
                    raise TypeError(f"finished() returned {retention!r}, which is no Retention")
                if not retention.ttl_s >= 0:
                    raise ValueError(f"finished() returned a TTL of {retention.ttl_s!r} s")
                for name, value in retention.why.items():
                    if type(value) not in LOGGED:
                        raise TypeError(
                            f"finished() returned {name}={value!r}, which the log cannot take"
                        )
            except Exception as error:
                self._failed("finished", error)
                return FREE
            return FREE if self._stock_decides else retention

        return finished

    def _decision(
        self,
        name: str,
        method: Callable[..., Any],
        stock: Callable[..., Any],
        checked: Callable[..., Any],
    ) -> Callable[..., Any]:
        def decision(*args: Any) -> Any:
            if self._stock_decides:
                return stock(*args)
            try:
                return checked(method(*args), *args)
            except Exception as error:
                self._failed(name, error)
                self._stock_decides = True
                self._on_failed_decision()
                return stock(*args)

        return decision

    def _failed(self, name: str, error: Exception) -> None:
        self.failures[name] += 1
        kind = (name, type(error))
        if kind not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(kind)
            logger.error(
                "%s.%s failed; the server continues without its decision. Further failures of this "
                "kind are counted, not logged.",
                self._name,
                name,
                exc_info=error,
            )


# What the runner requires of an answer. Each function returns it, or raises.


def _rank(rank: Any, *_: Any) -> Any:
    if not isinstance(rank, tuple):
        raise TypeError(f"rank() returned {rank!r}, which is no tuple")
    sum(rank)  # raises TypeError if it is not of numbers
    return rank


def _running(turn: Any, *args: Any) -> Any:
    *_, running, _ = args
    if turn not in running:
        raise ValueError(f"{turn!r} does not run")
    return turn


def _running_or_none(turn: Any, *args: Any) -> Any:
    return None if turn is None else _running(turn, *args)


def _offered(pins: Any, offered: Any, *_: Any) -> Any:
    chosen = list(pins)
    if chosen and not set(chosen) <= set(offered):
        raise ValueError("a pin was returned that was not offered")
    return chosen


def _seconds(wake_s: Any, *_: Any) -> Any:
    if wake_s is not None and math.isnan(wake_s):
        raise ValueError("wake_s() returned NaN")
    return wake_s


CHECKED: dict[str, Callable[..., Any]] = {
    "rank": _rank,
    "admit": lambda answer, *_: answer,
    "victim": _running,
    "displaced": _running_or_none,
    "reclaim": _offered,
    "review": _offered,
    "woke": lambda ids, *_: None if ids is None else list(ids),
    "wake_s": _seconds,
}
