"""Policies that hold turns back and refuse to release pins, for no reason but to test engines."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

from servers.policies.base import Admit, Costs, Pin, Policy, Rank, Request, Retention, pin

ANSWERS: tuple[Admit, ...] = ("run", "run", "skip", "stop")
PERIOD_S = 0.25


class HoldsBack(Policy):
    """Its answers are random, and change with each event and four times a second."""

    name = "holds-back"

    def __init__(self, costs: Costs, *, pressure: bool = True) -> None:
        super().__init__(costs)
        self.reclaim_when = "pressure" if pressure else "stuck"
        self._events = 0

    def arrived(self, request: Request, now_s: float) -> None:
        self._events += 1

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._events += 1

    def preempted(self, request: Request, now_s: float) -> None:
        self._events += 1

    def finished(self, request: Request, now_s: float) -> Retention:
        self._events += 1
        return pin(3.0)

    def aborted(self, request: Request, now_s: float) -> None:
        self._events += 1

    def pinned(self, pin: Pin, now_s: float) -> None:
        self._events += 1

    def unpinned(self, pin: Pin, now_s: float) -> None:
        self._events += 1

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        return self._random(request, now_s).choice(ANSWERS)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return [pin for pin in pins if (pin.request.id + request.id) % 2]

    def wake_s(self, now_s: float) -> float | None:
        return (int(now_s / PERIOD_S) + 1) * PERIOD_S

    def _random(self, request: Request, now_s: float) -> random.Random:
        return random.Random(f"{request.id} {self._events} {int(now_s / PERIOD_S)}")


class HoldsBackAndDisplaces(HoldsBack):
    """Serves turns in a random order. If the turn that it admits next does not fit, it preempts a
    running turn that comes after it."""

    name = "holds-back-and-displaces"

    def rank(self, request: Request, now_s: float) -> Rank:
        return (request.id * 37 % 101, request.id)

    def displaced(self, head: Request, running: Sequence[Request], now_s: float) -> Request | None:
        last = max(running, key=lambda request: self.rank(request, now_s))
        return last if self.rank(head, now_s) < self.rank(last, now_s) else None


class LeavesRoom(HoldsBack):
    """Also admits nobody while less than a third of the device is free."""

    name = "leaves-room"

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        little = 3 * free_tokens < self.costs.kv_tokens
        return "stop" if little else super().admit(request, free_tokens, now_s)
