"""Least attained service over weighted tokens, as llm-d's router does it.

Source: `llm-d/llm-d-router` at `ebab687`, `pkg/epp/framework/plugins/flowcontrol/fairness/
program-aware`, strategy `las`. There each program has a queue. The queue with the highest score is
dispatched next:

    score = w_service * (1 - norm(service)) + w_wait * norm(wait)

service: prompt tokens + 2 * output tokens of the program's finished turns, halved every 60 s;
wait: time since the turn at the head of the queue arrived;
norm: range normalised over the queues that are not empty; 0.5 if all values are equal.
w_service = 0.8, w_wait = 0.2.

All services decay by the same factor and all waits grow by the same amount, and `norm` removes
both. So the order of the waiting turns is constant until a turn arrives, is admitted or finishes.
Turns of one program go in order of arrival. KV is freed at the end of a turn, and for memory the
turn admitted last is preempted: a router decides neither.

Departs from the source:
- the router reads the ranges at each dispatch. Here they are read again at most once a second
  (`REFRESH_S`), since each new range ranks waiting turns again. In between, new turns are ranked
  with the ranges in use;
- a router dispatches a turn once. A turn that is preempted afterwards goes first here, as in vLLM,
  and does not count in the ranges;
- waits are not rounded to milliseconds;
- the router picks one of equal scores at random; here the earlier arrival goes first.
The state of a program is dropped at its end, there after an hour without a finished turn.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Policy, Rank, Request, Retention
from servers.policies.estimates.recent import Recent
from servers.policies.ordered import Entry, Ordered
from servers.policies.ranked_queue import RankedQueue

OUTPUT_WEIGHT = 2
HALF_LIFE_S = 60.0
WEIGHT_SERVICE = 0.8
WEIGHT_WAIT = 0.2
REFRESH_S = 1.0
"""Ranges are read again at whole multiples of this time."""


class AttainedService:
    """The attained service of a program, in weighted tokens at a time."""

    def __init__(self, tokens: float, at_s: float) -> None:
        self.tokens = tokens
        self.at_s = at_s


class Ranges(NamedTuple):
    """Smallest and largest service and head arrival of the programs that wait."""

    at_s: float
    """The time at which the services are given."""
    least: float = 0.0
    most: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0

    def at(self, at_s: float, half_life_s: float) -> Ranges:
        """Return the same ranges with the services at a later time."""
        decay = 2 ** ((self.at_s - at_s) / half_life_s)
        return self._replace(at_s=at_s, least=self.least * decay, most=self.most * decay)


def normalised(value: float, least: float, most: float) -> float:
    return 0.5 if most == least else (value - least) / (most - least)


@mypyc_attr(allow_interpreted_subclasses=True)
class Las(Policy):
    """Programs with the least attained service first, in tokens that decay with time."""

    name = "las"
    source = "llm-d-router, flow control, program-aware fairness"
    checked: ClassVar[str] = "yes: against its formula in other words, on random queues each night"
    reranks: ClassVar[bool] = True

    def __init__(
        self,
        costs: Costs,
        *,
        half_life_s: float = HALF_LIFE_S,
        weight_service: float = WEIGHT_SERVICE,
        weight_wait: float = WEIGHT_WAIT,
    ) -> None:
        super().__init__(costs)
        if half_life_s != 0 and not half_life_s >= REFRESH_S:
            raise ValueError(f"half_life_s must be 0 (no decay) or at least {REFRESH_S:g}")
        if not (weight_service >= 0 and weight_wait >= 0):
            raise ValueError("weight_service and weight_wait must not be negative")
        self._half_life_s = half_life_s or math.inf
        self._weight_service = weight_service
        self._weight_wait = weight_wait
        self._services: Recent[AttainedService] = Recent()
        self._waiting: dict[str, dict[int, float]] = {}
        """For each program, the arrival times of its waiting turns by id, in order of arrival."""
        self._ranges = Ranges(0.0)
        """The ranges in use before `_refresh_s`."""
        self._refresh_s = 0.0
        """The time from which on the ranges of the programs that wait now are in use."""
        self._refreshed: Ranges | None = None
        """Those ranges, once they have been read."""
        self._turns: Ordered[int, str] = Ordered()
        """Programs of the waiting turns, by request id and in order of arrival. The size of an item
        is the logarithm of its program's service; it falls by the same amount for all."""
        self._front: list[Entry[int, str]] = []
        """The contenders: turns before which all others have been served more. Each other turn has
        an earlier one with no more service, so that its score is not the highest."""
        self._contenders: set[int] = set()
        self._most_served: RankedQueue[str] = RankedQueue()
        """Programs of the waiting turns, the most served first."""
        self._heads: RankedQueue[float] = RankedQueue()
        """Arrivals of the first waiting turn of each program, the latest first."""
        self._known: set[int] = set()
        """The contenders that the engine knows."""
        self._outdated = False
        """Whether it has ranks with other ranges or services."""

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        alone = not self._waiting or (len(self._waiting) == 1 and now_s >= self._refresh_s)
        self._keep_ranges(now_s)
        turns = self._waiting.setdefault(request.program_id, {})
        turns[request.id] = request.arrival_s
        if len(turns) == 1:
            self._lead(turns)
        self._place(request.program_id, request.id, request.arrival_s)
        self._changed(now_s)
        if alone:
            self._refresh_s = now_s

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._leave_queue(request, now_s)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._keep_ranges(now_s)
        cost = request.prompt_tokens + OUTPUT_WEIGHT * request.output_tokens
        tokens = self._service(request.program_id, now_s) + cost
        self._services[request.program_id] = AttainedService(tokens, now_s)
        self._place_again(request.program_id)
        self._changed(now_s)
        return FREE

    def aborted(self, request: Request, now_s: float) -> None:
        self._leave_queue(request, now_s)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._keep_ranges(now_s)
        self._services.pop(program_id)
        self._place_again(program_id)
        self._changed(now_s)

    def woke(self, now_s: float) -> Iterable[int]:
        """Return the turns that ceased to be contenders and those that began to be, or all of these
        if the engine has other ranks of them."""
        if now_s >= self._refresh_s:
            self._read_ranges()
        changed = self._known ^ self._contenders
        if self._outdated:
            changed |= self._contenders
        if changed:
            self._known, self._outdated = self._contenders.copy(), False
        return changed

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        if request.preempted:
            return (False, False, 0.0, request.arrival_s, request.id)
        if request.id in self._turns and request.id not in self._contenders:
            return (True, True, 0.0, request.arrival_s, request.id)
        return (True, False, -self.score(request, now_s), request.arrival_s, request.id)

    def score(self, request: Request, now_s: float) -> float:
        """Return the score of a waiting turn; the highest is admitted next."""
        ranges = self._ranges if now_s < self._refresh_s else self._read_ranges()
        service = self._service(request.program_id, ranges.at_s)
        served = normalised(service, ranges.least, ranges.most)
        arrived = normalised(request.arrival_s, ranges.first_s, ranges.last_s)
        return self._weight_service * (1 - served) + self._weight_wait * (1 - arrived)

    def wake_s(self, now_s: float) -> float | None:
        return self._refresh_s if self._waiting and now_s < self._refresh_s else None

    # Ranges -------------------------------------------------------------------------------------

    def _service(self, program_id: str, at_s: float) -> float:
        """Return the weighted tokens of a program as they were or would be at a time."""
        service = self._services.get(program_id)
        if service is None:
            return 0.0
        return float(service.tokens * 2 ** ((service.at_s - at_s) / self._half_life_s))

    def _leave_queue(self, request: Request, now_s: float) -> None:
        waiting = self._waiting.get(request.program_id)
        if waiting is None or request.id not in waiting:
            return
        self._keep_ranges(now_s)
        del waiting[request.id]
        self._displace(request.id)
        self._most_served.remove(request.id)
        if request.id in self._heads:
            self._heads.remove(request.id)
            self._lead(waiting)
        if not waiting:
            del self._waiting[request.program_id]
        self._changed(now_s)

    def _lead(self, turns: dict[int, float]) -> None:
        """Count the first of a program's waiting turns, if there is one, as its head."""
        for request_id, arrival_s in turns.items():
            self._heads.push(request_id, (-arrival_s, request_id), arrival_s)
            break

    def _place(self, program_id: str, request_id: int, arrival_s: float) -> None:
        """Place a waiting turn, as a contender if it is one."""
        service, level = self._services.get(program_id), -math.inf
        if service is not None and service.tokens > 0:
            level = math.log2(service.tokens) + service.at_s / self._half_life_s
        entry = self._turns.put(request_id, program_id, (arrival_s, float(request_id)), level)
        self._most_served.push(request_id, (-level, request_id), program_id)
        index = bisect_left(self._front, entry)
        if not index or level < self._front[index - 1].size:
            while index < len(self._front) and self._front[index].size >= level:
                self._contenders.remove(self._front.pop(index).key)
            self._front.insert(index, entry)
            self._contenders.add(request_id)

    def _displace(self, request_id: int) -> None:
        """Take a waiting turn out. If it was a contender, those that it kept from being so are."""
        entry = self._turns.pop(request_id)
        if entry is None or request_id not in self._contenders:
            return
        index = bisect_left(self._front, entry)
        del self._front[index]
        self._contenders.remove(request_id)
        following = self._front[index] if index < len(self._front) else None
        before = self._front[index - 1] if index else None
        while (entry := self._next_contender(before)) is not following and entry is not None:
            self._front.insert(index, entry)
            self._contenders.add(entry.key)
            before, index = entry, index + 1

    def _next_contender(self, before: Entry[int, str] | None) -> Entry[int, str] | None:
        """Return the first turn after a contender that has been served less."""
        if before is None:
            return self._turns.next_within(math.inf)
        less = math.nextafter(before.size, -math.inf)
        return self._turns.next_within(less, before) if less < before.size else None

    def _place_again(self, program_id: str) -> None:
        """Place the waiting turns of a program again, whose service has changed."""
        for request_id, arrival_s in self._waiting.get(program_id, {}).items():
            self._displace(request_id)
            self._place(program_id, request_id, arrival_s)
            self._outdated = True

    def _read_ranges(self) -> Ranges:
        if self._refreshed is None:
            at_s, self._outdated = self._refresh_s, True
            self._refreshed = Ranges(at_s)
            if self._waiting:
                self._refreshed = Ranges(
                    at_s,
                    self._service(self._front[-1].item, at_s),
                    self._service(self._most_served.peek(), at_s),
                    self._front[0].place[0],
                    self._heads.peek(),
                )
        return self._refreshed

    def _keep_ranges(self, now_s: float) -> None:
        """Keep the ranges in use before an event changes the programs that wait."""
        if now_s >= self._refresh_s:
            self._ranges = self._read_ranges().at(now_s, self._half_life_s)

    def _changed(self, now_s: float) -> None:
        """Read the ranges again at the next refresh."""
        self._refreshed = None
        self._refresh_s = (math.floor(now_s / REFRESH_S) + 1) * REFRESH_S
