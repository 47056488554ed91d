"""The rules of Progress-TTL for one machine, stated again from `vllm-project/router`.

Source: `src/program_scheduling/` (commits 02b9331 and a77107f, Apache-2.0). Here are lists of
everything that has happened, and each sum is over all of them, where the product keeps accounts.
The worlds of the policy `progress-ttl` and of the router `program-scheduling` use these rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import NormalDist
from types import SimpleNamespace

from servers.policies.base import Costs

WINDOW = 6
MOST_ROUNDS = 4
MOST_ACTIVE = 9


def prefill_s(tokens: int) -> float:
    return 0.07 + 0.6 * tokens / 1000 + 0.04 * (tokens / 1000) ** 2


def step_s(turns: int, context: int) -> float:
    return 0.1 + 0.0004 * turns + 1.4e-7 * context


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def costs(capacity: int) -> Costs:
    return Costs(prefill_s, kv_tokens=capacity, decode_step_s=step_s)


def miss_s(tokens: int) -> float:
    return prefill_s(tokens) * 1.85 if tokens > 0 else 0.0


def new_program(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, active=False, open=0, context=0, shared=0, prompt=None, finished_s=None,
        rounds=0, rounds_since_ttl=0, segment_s=None, marked=False, yielded=False,
        expires_s=math.inf, shrinks=0, miss_s=0.0,
    )  # fmt: skip


def tokens(p: SimpleNamespace) -> int:
    return int(max(p.context - p.shared, 0)) + 100


def pause(p: SimpleNamespace) -> None:
    p.active, p.rounds, p.marked, p.expires_s = False, 0, False, math.inf


def admit(p: SimpleNamespace, now_s: float) -> None:
    p.active, p.rounds, p.yielded = True, 0, False
    p.segment_s = now_s if p.segment_s is None else p.segment_s


class Machine:
    def __init__(self) -> None:
        self.turns: list[SimpleNamespace] = []
        self.gaps_s: list[float] = []

    # What the last turns say

    def recent(self) -> list[SimpleNamespace]:
        return self.turns[-WINDOW:]

    def target(self) -> int:
        if len(self.turns) < WINDOW:
            return 0
        return min(max(math.ceil(2 * mean([t.rounds for t in self.recent()])), 1), MOST_ROUNDS)

    def per_s(self) -> float:
        last = self.recent()
        seconds = last[-1].at_s - last[0].at_s if last else 0.0
        return (len(last) - 1) / seconds if seconds > 0 else 0.0

    def growth(self) -> float:
        grown = [t.growth for t in self.recent() if t.growth is not None]
        return mean(grown) if grown else 0.0

    def output(self) -> float:
        return mean(t.output for t in self.recent()) if self.turns else 0.0

    def ttl_s(self, cost_s: float) -> float:
        logs = [math.log(gap_s) for gap_s in self.gaps_s[-WINDOW:] if gap_s > 0]
        top = min(10.0, cost_s)
        if len(self.gaps_s) < WINDOW or not logs or top <= 0:
            return 0.0
        centre = mean(logs)
        sigma = max(math.sqrt(mean((log - centre) ** 2 for log in logs)), 1e-6)
        within, shifted = NormalDist(centre, sigma).cdf, NormalDist(centre + sigma**2, sigma).cdf
        average_s, low = math.exp(centre + sigma**2 / 2), min(0.05, top)
        worth = {0.0: 0.0}
        for i in range(32):
            d = low * (top / low) ** (i / 31)
            missed = 1 - within(math.log(d))
            worth[d] = cost_s * (1 - missed) - average_s * shifted(math.log(d)) - d * missed
        return max(worth, key=lambda d: (worth[d], d))

    # Admission

    def left(self, p: SimpleNamespace) -> int:
        return max(self.target() - p.rounds, 0)

    def ahead(self, active: list[SimpleNamespace]) -> int:
        return sum(max(self.left(p), int(p.open > 0)) for p in active)

    def reserve(self, active: list[SimpleNamespace]) -> float:
        target, stay = self.target(), sum(map(self.left, active))
        return self.growth() * (target + stay) * (target > 0)

    def admissible(
        self, p: SimpleNamespace, active: list[SimpleNamespace], used: float, limit: float
    ) -> bool:
        own = tokens(p)
        if len(active) + 1 > MOST_ACTIVE or used + own > limit:
            return False
        if used + own + self.reserve(active) <= limit:
            return True
        batch = [other for other in active if other.open]
        if not batch:
            return False
        context = sum(other.context for other in batch)
        before = len(batch) / step_s(len(batch), context)
        after = (len(batch) + 1) / step_s(len(batch) + 1, context + p.context)
        decode_s = len(batch) * self.output() / before
        gain_s = decode_s * max(after / before - 1, 0)
        growth, stay = self.growth(), sum(map(self.left, active))
        room = max(limit - used, 0)
        stay_before = min(stay, room / growth)
        stay_after = min(stay, max(room - own - growth * self.target(), 0) / growth)
        misses = [other.miss_s for other in active if self.left(other) > 0]
        if stay_after <= 2**-52:
            loss_s = math.inf if stay_before > 0 else 0.0
        else:
            loss_s = (stay_before - stay_after) / stay_after * mean(misses)
        return gain_s >= miss_s(p.context - p.shared) + loss_s

    # Events

    def arrives(self, p: SimpleNamespace, prompt: int, now_s: float) -> None:
        if not p.open and p.finished_s is not None:
            self.gaps_s.append(now_s - p.finished_s)
        if prompt >= p.context:
            p.context, p.shrinks = prompt, 0
        p.open, p.expires_s = p.open + 1, math.inf

    def ends_turn(self, p: SimpleNamespace, prompt: int, output: int, now_s: float) -> float:
        """Record it; return the TTL."""
        p.open -= 1
        p.miss_s = miss_s(prompt - p.shared)
        ttl_s = self.ttl_s(p.miss_s)
        goes_on = p.prompt is None or p.cached >= 0.9 * p.prompt
        if p.first and (p.prompt is None or not goes_on):
            p.segment_s = p.dispatched_s
        p.first = False
        if p.prompt is None:
            p.shared = p.cached
        p.shrinks += 1
        if prompt >= p.context or p.shrinks == 2:
            p.context, p.shrinks = prompt, 0
        p.rounds += goes_on
        p.rounds_since_ttl += goes_on
        growth = None if p.prompt is None else prompt - p.prompt
        if growth is not None and not 0 < growth < p.prompt:
            growth = None
        self.turns.append(SimpleNamespace(
            prompt=prompt, output=output, growth=growth, rounds=p.rounds_since_ttl, at_s=now_s
        ))  # fmt: skip
        p.prompt, p.finished_s = prompt, now_s
        return ttl_s

    def repair(
        self,
        active: list[SimpleNamespace],
        used: float,
        low: float,
        high: float,
        now_s: float,
        pause_idle: Callable[[SimpleNamespace], None],
        arriving: SimpleNamespace | None = None,
    ) -> None:
        output = math.ceil(self.output())
        need = used + output * sum(p.open > 0 for p in active)
        need -= sum(tokens(p) + output for p in active if p.marked)
        average = mean(t.prompt for t in self.recent()) if self.turns else 1.0

        def score(p: SimpleNamespace) -> float:
            size = (p.context if p.open else p.prompt) / max(average, 1.0)
            return float((now_s - p.segment_s) * max(size**-0.5, 0.5))

        if need <= high:
            return
        victims = [p for p in active if not p.marked and p is not arriving]
        for p in sorted(victims, key=lambda p: (-score(p), -tokens(p), p.name)):
            if need <= low:
                break
            need -= tokens(p) + (output if p.open else 0)
            if p.open:
                p.marked = True
            else:
                pause_idle(p)
