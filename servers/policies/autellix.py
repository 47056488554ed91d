"""PLAS: programs that have been served least go first (Autellix, arXiv:2502.13965, §4.2).

A call (turn) enters the level of its program's attained service and has that level's quantum; a
running call that has used up its quantum is demoted by one level. Within a level calls are served
first come, first served. A waiting call of a strictly better level that does not fit displaces the
worst running call. A waiting call is promoted to the top level, with a fresh quantum, once

    (W_p + W_c) / (T_p + T_c) >= beta,

where W and T are seconds waited and served: p for the program's earlier calls, c for this call
since its last promotion.

Service is execution time, from scheduled to finished without the time preempted, summed over a
program's finished and cancelled calls. Calls of one program that overlap add up, as in PLAS, which
Continuum v3, §6.1 compares against, and not as in ATLAS.

There is no official code. The promotion rule follows the account of the paper's Algorithm 1 in
public re-implementations, and has yet to be checked against its text. Constants taken here: eight
levels, quanta of 1, 2, 4 ... 64 s and an endless one (keyword `quanta_s`), beta = 10 (keyword
`beta`). Service is seconds, not decode steps. A waiting call's promotion time is fixed when it
begins to wait, so the finish of an overlapping call of its program does not move it. KV is freed
at the end of a call. For memory the worst running call is preempted; it rejoins its level, not the
head of the queue.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Policy, Rank, Request, Retention
from servers.policies.estimates.recent import Recent

QUANTA_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Quanta of all levels but the last, which is endless."""
BETA = 10.0


class Attained(NamedTuple):
    """Time of a program's finished calls."""

    served_s: float = 0.0
    waited_s: float = 0.0


class LlmCall:
    def __init__(self, program: Attained, level: int, left_s: float, since_s: float) -> None:
        self.program = program
        self.level = level
        self.entered_s = since_s
        """When it entered the level."""
        self.left_s = left_s
        """Remaining part of the level's quantum."""
        self.since_s = since_s
        """The time at which it began to wait or run."""
        self.running = False
        self.changes_s: list[float] = []
        """Times at which the level changes if no event happens: demotions of a running call, the
        promotion of a waiting one. `level_at` and `wake_s` both use these times, so they agree."""
        self.served_s = 0.0
        self.waited_s = 0.0
        self.before_promotion_s = 0.0
        """Service before the last promotion."""
        self.rank: Rank = ()
        """The latest result of `Autellix.rank`: engines ask for many ranks, and few change."""
        self.rank_level = -1
        """The level in `rank`; -1 before the first."""

    def level_at(self, now_s: float) -> int:
        changes_s = self.changes_s
        if not changes_s or now_s < changes_s[0]:
            return self.level
        return self.level + self.passed(now_s) if self.running else 0

    def passed(self, now_s: float) -> int:
        """Return how many of the changes have happened."""
        passed = 0
        for change_s in self.changes_s:
            if now_s < change_s:
                break
            passed += 1
        return passed


@mypyc_attr(allow_interpreted_subclasses=True)
class Autellix(Policy):
    """Programs that have been served least go first (PLAS); preemptive."""

    name = "autellix"
    source = "arXiv:2502.13965, §4.2"

    def __init__(
        self, costs: Costs, *, quanta_s: Sequence[float] = QUANTA_S, beta: float = BETA
    ) -> None:
        super().__init__(costs)
        if any(quantum_s <= 0 for quantum_s in quanta_s) or beta <= 0:
            raise ValueError("quanta_s and beta must be above 0")
        self._quanta_s = (*quanta_s, math.inf)
        self._bounds_s = list(accumulate(quanta_s))
        self._beta = beta
        self._programs: Recent[Attained] = Recent()
        self._calls: dict[int, LlmCall] = {}
        self._wakes: list[tuple[float, int]] = []
        self._promoted: list[int] = []
        """Waiting calls that have been promoted since the engine last woke, and some others."""

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        program = self._programs.get(request.program_id) or Attained()
        level = bisect_right(self._bounds_s, program.served_s)
        call = LlmCall(program, level, self._quanta_s[level], now_s)
        self._calls[request.id] = call
        self._wait(request.id, call, now_s)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        call = self._calls[request.id]
        self._stop(call, now_s)
        call.running = True
        quanta_s = (call.left_s, *self._quanta_s[call.level + 1 : -1])
        endless = math.isinf(call.left_s)
        call.changes_s = [] if endless else [now_s + s for s in accumulate(quanta_s)]
        self._wake_for(request.id, call)

    def preempted(self, request: Request, now_s: float) -> None:
        call = self._calls[request.id]
        self._stop(call, now_s)
        self._wait(request.id, call, now_s)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._leave(request, now_s)
        return FREE

    def aborted(self, request: Request, now_s: float) -> None:
        self._leave(request, now_s)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._programs.pop(program_id)

    def woke(self, now_s: float) -> Iterable[int]:
        self.wake_s(now_s)  # finds the calls that have been promoted
        promoted, self._promoted = self._promoted, []
        return promoted

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        call = self._calls[request.id]
        level = call.level_at(now_s)
        if call.rank_level != level:
            call.rank_level, call.rank = level, (level, request.arrival_s, request.id)
        return call.rank

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        worst, lowest_level = running[0], -1
        for request in running:
            level = self._calls[request.id].level_at(now_s)
            if level > lowest_level or (level == lowest_level and _came_later(request, worst)):
                worst, lowest_level = request, level
        return worst

    def displaced(self, head: Request, running: Sequence[Request], now_s: float) -> Request | None:
        if not running:
            return None
        worst = self.victim(running, now_s)
        better = self._calls[head.id].level_at(now_s) < self._calls[worst.id].level_at(now_s)
        return worst if better else None

    def wake_s(self, now_s: float) -> float | None:
        """Return the first level change. The heap has, for each call, a time no later than its next
        change; times that have passed are replaced by the call's next one."""
        wakes = self._wakes
        while wakes:
            at_s, call_id = wakes[0]
            call = self._calls.get(call_id)
            passed = 0 if call is None else call.passed(now_s)
            if call is None or passed == len(call.changes_s):
                heapq.heappop(wakes)
                if call is not None and not call.running:
                    self._promoted.append(call_id)
            elif call.changes_s[passed] != at_s:
                heapq.heapreplace(wakes, (call.changes_s[passed], call_id))
            else:
                return at_s
        return None

    # Accounts -----------------------------------------------------------------------------------

    def _wait(self, call_id: int, call: LlmCall, now_s: float) -> None:
        """Start the call's waiting time, and set the time of its promotion to the top level."""
        call.running, call.since_s, call.changes_s = False, now_s, []
        if call.level == 0:
            return
        served_s = call.program.served_s + call.served_s
        short_s = self._beta * served_s - call.program.waited_s - call.waited_s
        if short_s <= 0:
            self._promote(call, now_s)
        else:
            call.changes_s = [now_s + short_s]
            self._wake_for(call_id, call)

    def _stop(self, call: LlmCall, now_s: float) -> None:
        """Add the time until now to the call's waiting time or service."""
        passed = call.passed(now_s)
        if not call.running:
            call.waited_s += now_s - call.since_s
            if passed:
                self._promote(call, call.changes_s[0])
                call.waited_s = now_s - call.entered_s
        else:
            call.served_s += now_s - call.since_s
            if passed:
                call.level, call.entered_s = call.level + passed, call.changes_s[passed - 1]
            last = passed == len(call.changes_s)
            call.left_s = math.inf if last else call.changes_s[passed] - now_s
        call.since_s, call.changes_s = now_s, []

    def _promote(self, call: LlmCall, at_s: float) -> None:
        call.level, call.entered_s, call.left_s = 0, at_s, self._quanta_s[0]
        call.before_promotion_s += call.served_s
        call.served_s = call.waited_s = 0.0

    def _leave(self, request: Request, now_s: float) -> None:
        call = self._calls.pop(request.id)
        self._stop(call, now_s)
        if request.is_last:
            self._programs.pop(request.program_id)
            return
        so_far = self._programs.get(request.program_id) or Attained()
        self._programs[request.program_id] = Attained(
            so_far.served_s + call.served_s + call.before_promotion_s,
            so_far.waited_s + call.waited_s,
        )

    def _wake_for(self, call_id: int, call: LlmCall) -> None:
        if call.changes_s:
            heapq.heappush(self._wakes, (call.changes_s[0], call_id))


def _came_later(request: Request, other: Request) -> bool:
    if request.arrival_s == other.arrival_s:
        return request.id > other.id
    return request.arrival_s > other.arrival_s
