"""Policies from outside Turnstile, which derive from compiled classes and stay interpreted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Literal

from servers.policies.base import Costs, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.continuum import Continuum
from servers.routers.base import Replica, RoutedTurn, Router


class ShortPromptsFirst(Policy):
    """Overrides every decision, attributes of the class, and returns whole numbers as seconds."""

    name = "short-prompts-first"
    reclaim_when: Literal["stuck", "pressure"] = "pressure"
    reviews_pins: ClassVar[bool] = True

    def __init__(self, costs: Costs, *, hold_s: int = 3) -> None:
        super().__init__(costs)
        self.hold_s = hold_s

    def finished(self, request: Request, now_s: float) -> Retention:
        return pin(self.hold_s, tool=request.tool, hold_s=self.hold_s)

    def rank(self, request: Request, now_s: float) -> Rank:
        return (request.prompt_tokens, request.id)

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        return max(running, key=lambda r: (r.prompt_tokens, r.id))

    def displaced(self, head: Request, running: Sequence[Request], now_s: float) -> Request | None:
        worst = max(running, key=lambda r: r.prompt_tokens)
        return worst if worst.prompt_tokens > 4 * head.prompt_tokens else None

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return sorted(pins, key=lambda p: p.tokens)

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        return [p for p in pins if p.tokens > 60_000 and now_s > p.pinned_at_s + 1]

    def wake_s(self, now_s: float) -> float | None:
        return now_s + 5


class PatientContinuum(Continuum):
    """Extends a policy of Turnstile, and ranks as its base class."""

    name = "patient-continuum"

    def finished(self, request: Request, now_s: float) -> Retention:
        decision = super().finished(request, now_s)
        return pin(2 * decision.ttl_s, **decision.why)


class LongPromptsLast(Router):
    """Holds long prompts back until another turn ends, or for a second."""

    name = "long-prompts-last"
    report_s = 0.5
    period_s = 1.0
    needs_runs = True

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self._held: list[RoutedTurn] = []
        self._ended = False

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        if turn.prompt_tokens > 20_000 and turn.runs:
            self._held.append(turn)
            return None
        return self._emptiest()

    def finished(self, turn: RoutedTurn, now_s: float) -> None:
        self._ended = True

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        ended, self._ended = self._ended, False
        return self.tick(now_s) if ended else ()

    def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        return [(self._held.pop(), self._emptiest())] if self._held else ()

    def _emptiest(self) -> int:
        return min(self.replicas, key=lambda each: (each.used_tokens, each.turns)).index
