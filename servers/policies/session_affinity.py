"""FCFS that lets one turn of a session whose KV is warm pass the turns in front of it.

Source: vLLM PR #51384. Of the first `window` waiting turns, the first one whose session ended a
turn in the last `session_ttl_s` is admitted first, unless a preempted turn waits or the first turn
has waited for `head_wait_s`. Departures: the source also requires a hit in the prefix cache, which
a policy does not see; it gives no defaults in its text, so these are ours.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import Costs, Need, Policy, Rank, Request, Retention

NOBODY = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class SessionAffinity(Policy):
    """FCFS, but a turn of a recently served session may pass the others of a window."""

    name = "session-affinity"
    source = "vLLM PR #51384"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "no: hits are not required"
    reranks: ClassVar[bool] = True

    def __init__(
        self,
        costs: Costs,
        *,
        window: int = 16,
        head_wait_s: float = 10.0,
        session_ttl_s: float = 60.0,
    ) -> None:
        super().__init__(costs)
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self._window, self._head_wait_s, self._ttl_s = window, head_wait_s, session_ttl_s
        self._waiting: dict[int, Request] = {}
        """In order of arrival, without preempted turns."""
        self._preempted: set[int] = set()
        self._ended_s: dict[str, float] = {}
        """When the last turn of each session ended."""
        self._promoted = NOBODY

    def arrived(self, request: Request, now_s: float) -> None:
        self._waiting[request.id] = request

    def preempted(self, request: Request, now_s: float) -> None:
        self._preempted.add(request.id)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._stop_waiting(request)

    def aborted(self, request: Request, now_s: float) -> None:
        self._stop_waiting(request)

    def _stop_waiting(self, request: Request) -> None:
        self._waiting.pop(request.id, None)
        self._preempted.discard(request.id)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._ended_s[request.program_id] = now_s
        return super().finished(request, now_s)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._ended_s.pop(program_id, None)

    def rank(self, request: Request, now_s: float) -> Rank:
        passes = request.id == self._promoted
        return (not request.preempted, not passes, request.arrival_s, request.id)

    def woke(self, now_s: float) -> list[int]:
        before, self._promoted = self._promoted, self._warm(now_s)
        return [] if before == self._promoted else [before, self._promoted]

    def wake_s(self, now_s: float) -> float | None:
        promoted = self._waiting.get(self._warm(now_s))
        if promoted is None:
            return None
        return min(self._head_due_s(), self._ended_s[promoted.program_id] + self._ttl_s)

    def _head_due_s(self) -> float:
        """Return until when other turns may pass the first one."""
        head = next(iter(self._waiting.values()), None)
        return -math.inf if head is None else head.arrival_s + self._head_wait_s

    def _warm(self, now_s: float) -> int:
        """Return the turn that may pass the others."""
        if self._preempted or now_s >= self._head_due_s():
            return NOBODY
        for request in islice(self._waiting.values(), self._window):
            ended_s = self._ended_s.get(request.program_id)
            if ended_s is not None and now_s < ended_s + self._ttl_s:
                return request.id
        return NOBODY
