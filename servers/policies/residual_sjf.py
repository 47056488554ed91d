"""Shortest residual prefill first: the waiting turn with the fewest uncached blocks is admitted.

Source: vLLM PR #51375 (also xLLM #2164). Order: preempted turns; turns that have waited for
`max_wait_s`, by arrival; the others by the blocks of their prompt that are not cached, then by
arrival.

Departure: the sources look the cached blocks up before each step. A policy does not see the cache,
so the previous context of the program counts as cached unless, since then, turns have computed as
many tokens as the device holds, after which vLLM has evicted it.
"""

from __future__ import annotations

from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import Costs, Need, Policy, Rank, Request, Retention

BLOCK_TOKENS = 16


@mypyc_attr(allow_interpreted_subclasses=True)
class ResidualSjf(Policy):
    """The turn with the fewest prompt tokens that are not cached runs first."""

    name = "residual-sjf"
    source = "vLLM PR #51375"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "no: the cache is estimated"

    def __init__(self, costs: Costs, *, max_wait_s: float = 10.0) -> None:
        super().__init__(costs)
        if max_wait_s < 0:
            raise ValueError(f"max_wait_s must be at least 0, not {max_wait_s}")
        self._max_wait_s = max_wait_s
        self._computed = 0
        """Tokens that were computed so far."""
        self._contexts: dict[str, tuple[int, int]] = {}
        """Length of each program's last context, and `_computed` when it ended."""
        self._blocks: dict[int, int] = {}
        """Uncached blocks of the turns that wait, when they began to wait."""
        self._due_s: dict[int, float] = {}
        """When these turns have waited for too long, in order of arrival."""

    def arrived(self, request: Request, now_s: float) -> None:
        context, then = self._contexts.get(request.program_id, (0, 0))
        if self._computed - then > self.costs.kv_tokens:
            context = 0
        self._blocks[request.id] = max(0, request.prompt_tokens - context) // BLOCK_TOKENS
        self._due_s[request.id] = request.arrival_s + self._max_wait_s

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._computed += request.prompt_tokens - cached_tokens
        self._stop_waiting(request)

    def aborted(self, request: Request, now_s: float) -> None:
        self._stop_waiting(request)

    def _stop_waiting(self, request: Request) -> None:
        self._blocks.pop(request.id, None)
        self._due_s.pop(request.id, None)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._computed += request.output_tokens
        context = request.prompt_tokens + request.output_tokens
        self._contexts[request.program_id] = context, self._computed
        return super().finished(request, now_s)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._contexts.pop(program_id, None)

    def rank(self, request: Request, now_s: float) -> Rank:
        if request.preempted:
            return (0, 0, request.arrival_s, request.id)
        if now_s >= request.arrival_s + self._max_wait_s:
            return (1, 0, request.arrival_s, request.id)
        return (2, self._blocks.get(request.id, 0), request.arrival_s, request.id)

    def wake_s(self, now_s: float) -> float | None:
        return next((due_s for due_s in self._due_s.values() if due_s > now_s), None)

    def woke(self, now_s: float) -> list[int]:
        due = []
        for request_id, due_s in self._due_s.items():
            if due_s > now_s:
                break
            due.append(request_id)
        for request_id in due:
            del self._due_s[request_id]
        return due
