"""Random worlds, in which `progress-ttl` admits the same programs as the rules of its router.

`Router` states the rules again from `vllm-project/router`, `src/program_scheduling/` (commits
02b9331 and a77107f, Apache-2.0), for one machine: lists of everything that has happened, and each
sum over all of them, where the policy keeps accounts.
"""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist, fmean
from types import SimpleNamespace
from typing import Any

from servers.policies.base import Costs, Request
from servers.policies.progress_ttl import ProgressTtl

WINDOW = 6
MOST_ROUNDS = 4
MOST_ACTIVE = 9


def prefill_s(tokens: int) -> float:
    return 0.07 + 0.6 * tokens / 1000 + 0.04 * (tokens / 1000) ** 2


def step_s(turns: int, context: int) -> float:
    return 0.1 + 0.0004 * turns + 1.4e-7 * context


def miss_s(tokens: int) -> float:
    return prefill_s(tokens) * 1.85 if tokens > 0 else 0.0


class Router:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.now_s = 0.0
        self.all: dict[str, SimpleNamespace] = {}
        self.turns: list[SimpleNamespace] = []
        self.gaps_s: list[float] = []

    # What the last turns say

    def recent(self) -> list[SimpleNamespace]:
        return self.turns[-WINDOW:]

    def target(self) -> int:
        if len(self.turns) < WINDOW:
            return 0
        return min(max(math.ceil(2 * fmean(t.rounds for t in self.recent())), 1), MOST_ROUNDS)

    def growth(self) -> float:
        grown = [t.growth for t in self.recent() if t.growth is not None]
        return fmean(grown) if grown else 0.0

    def output(self) -> float:
        return fmean(t.output for t in self.recent()) if self.turns else 0.0

    def ttl_s(self, cost_s: float) -> float:
        logs = [math.log(gap_s) for gap_s in self.gaps_s[-WINDOW:] if gap_s > 0]
        top = min(10.0, cost_s)
        if len(self.gaps_s) < WINDOW or not logs or top <= 0:
            return 0.0
        mean = fmean(logs)
        sigma = max(math.sqrt(fmean((log - mean) ** 2 for log in logs)), 1e-6)
        within, shifted = NormalDist(mean, sigma).cdf, NormalDist(mean + sigma**2, sigma).cdf
        average_s, low = math.exp(mean + sigma**2 / 2), min(0.05, top)
        worth = {0.0: 0.0}
        for i in range(32):
            d = low * (top / low) ** (i / 31)
            missed = 1 - within(math.log(d))
            worth[d] = cost_s * (1 - missed) - average_s * shifted(math.log(d)) - d * missed
        return max(worth, key=lambda d: (worth[d], d))

    # Programs

    def tokens(self, p: SimpleNamespace) -> int:
        return int(max(p.context - p.shared, 0)) + 100

    def active(self) -> list[SimpleNamespace]:
        return [p for p in self.all.values() if p.active]

    def left(self, p: SimpleNamespace) -> int:
        return max(self.target() - p.rounds, 0)

    def pause(self, p: SimpleNamespace) -> None:
        p.active, p.rounds, p.marked, p.expires_s = False, 0, False, math.inf

    def until(self, now_s: float) -> None:
        for p in self.active():
            if p.expires_s <= now_s:
                self.pause(p)
                p.rounds_since_ttl = 0
        self.now_s = now_s

    def repair(self) -> None:
        output = math.ceil(self.output())
        mine = self.active()
        need = sum(map(self.tokens, mine)) + output * sum(p.open for p in mine)
        need -= sum(self.tokens(p) + output for p in mine if p.marked)
        average = fmean(t.prompt for t in self.recent()) if self.turns else 1.0

        def score(p: SimpleNamespace) -> float:
            size = (p.context if p.open else p.prompt) / max(average, 1.0)
            return float((self.now_s - p.segment_s) * max(size**-0.5, 0.5))

        if need <= self.capacity:
            return
        victims = [p for p in mine if not p.marked]
        for p in sorted(victims, key=lambda p: (-score(p), -self.tokens(p), p.name)):
            if need <= self.capacity:
                break
            need -= self.tokens(p) + (output if p.open else 0)
            if p.open:
                p.marked = True
            else:
                self.pause(p)

    def arrives(self, name: str, tokens: int, number: int) -> None:
        p = self.all.get(name)
        if p is None:
            p = self.all[name] = SimpleNamespace(
                name=name, active=False, context=0, shared=0, prompt=None, finished_s=None,
                rounds=0, rounds_since_ttl=0, segment_s=None, marked=False, yielded=False,
                expires_s=math.inf, shrinks=0, miss_s=0.0,
            )  # fmt: skip
        else:
            self.gaps_s.append(self.now_s - p.finished_s)
        if tokens >= p.context:
            p.context, p.shrinks = tokens, 0
        p.open, p.expires_s, p.came_s, p.number = True, math.inf, self.now_s, number
        if p.active:
            self.repair()
        else:
            p.deadline_s = self.now_s + self.patience_s(p)

    def patience_s(self, p: SimpleNamespace) -> float:
        last = self.recent()
        seconds = last[-1].at_s - last[0].at_s if last else 0.0
        if not self.target() or seconds <= 0:
            return 300.0
        ahead = sum(max(self.left(other), int(other.open)) for other in self.active())
        p.deadline_s = math.inf
        queue = self.waiting()
        ahead += self.target() * queue.index(p)
        return min(max(3 * ahead * seconds / (len(last) - 1), 30.0), 300.0)

    def waiting(self) -> list[SimpleNamespace]:
        def position(p: SimpleNamespace) -> Any:
            last_s = -1.0 if p.finished_s is None else p.finished_s
            return (p.deadline_s > self.now_s, p.yielded, -last_s, p.came_s, p.number)

        return sorted((p for p in self.all.values() if p.open and not p.active), key=position)

    def admits(self) -> str | None:
        return next((p.name for p in self.waiting() if self.admissible(p)), None)

    def admissible(self, p: SimpleNamespace) -> bool:
        mine = self.active()
        used, own = sum(map(self.tokens, mine)), self.tokens(p)
        if p.deadline_s <= self.now_s:
            return True
        if len(mine) + 1 > MOST_ACTIVE or used + own > self.capacity:
            return False
        target, growth = self.target(), self.growth()
        stay = sum(map(self.left, mine))
        if used + own + growth * (target + stay) * (target > 0) <= self.capacity:
            return True
        batch = [other for other in mine if other.open]
        if not batch:
            return False
        context = sum(other.context for other in batch)
        before = len(batch) / step_s(len(batch), context)
        after = (len(batch) + 1) / step_s(len(batch) + 1, context + p.context)
        decode_s = len(batch) * self.output() / before
        gain_s = decode_s * max(after / before - 1, 0)
        room = max(self.capacity - used, 0)
        stay_before = min(stay, room / growth)
        stay_after = min(stay, max(room - own - growth * target, 0) / growth)
        costs = [other.miss_s for other in mine if self.left(other) > 0]
        if stay_after <= 2**-52:
            loss_s = math.inf if stay_before > 0 else 0.0
        else:
            loss_s = (stay_before - stay_after) / stay_after * fmean(costs)
        return gain_s >= miss_s(p.context - p.shared) + loss_s

    def starts(self, name: str, cached: int) -> None:
        p = self.all[name]
        p.cached, p.first, p.dispatched_s = cached, not p.active, self.now_s
        if p.active:
            return
        p.active, p.rounds, p.yielded = True, 0, False
        p.segment_s = self.now_s if p.segment_s is None else p.segment_s

    def ends_turn(self, name: str, prompt: int, output: int) -> None:
        p = self.all[name]
        p.open = False
        p.miss_s = miss_s(prompt - p.shared)
        ttl_s = self.ttl_s(p.miss_s)
        marked, others = p.marked, [q for q in self.waiting() if q is not p]
        goes_on = p.prompt is None or p.cached >= 0.9 * p.prompt
        if p.first and (p.prompt is None or not goes_on):
            p.segment_s = p.dispatched_s
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
            prompt=prompt, output=output, growth=growth, rounds=p.rounds_since_ttl, at_s=self.now_s
        ))  # fmt: skip
        p.prompt, p.finished_s = prompt, self.now_s
        if marked:
            self.pause(p)
        elif p.rounds >= MOST_ROUNDS and others:
            self.pause(p)
            p.yielded = True
        else:
            p.expires_s = self.now_s + ttl_s
            self.until(self.now_s)
        self.repair()


class World:
    """A random world of at most 12 programs, which the policy and the router both see."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        capacity = self.random.randrange(6000, 40_000)
        costs = Costs(prefill_s, kv_tokens=capacity, decode_step_s=step_s)
        self.policy = ProgressTtl(
            costs, window=WINDOW, most_rounds=MOST_ROUNDS, most_active=MOST_ACTIVE
        )
        self.router = Router(capacity)
        self.open: dict[str, Request] = {}
        self.running: set[str] = set()
        self.contexts: dict[str, int] = {}
        self.now_s = 0.0
        self.ids = self.passed_over = 0

    def play(self) -> int:
        """Play; return how often a turn ran before one that was ahead of it."""
        for _ in range(40):
            self.now_s += self.random.choice((0.0, 0.25, 0.5, 0.5, 1.5, 8.0))
            self.router.until(self.now_s)
            self.happens()
            self.admit()
        return self.passed_over

    def happens(self) -> None:
        idle = [name for name in self.contexts if name not in self.open]
        if self.running and self.random.random() < 0.5:
            self.finish(self.random.choice(sorted(self.running)))
        elif idle and self.random.random() < 0.1:
            name = self.random.choice(idle)
            del self.contexts[name], self.router.all[name]
            self.policy.program_ended(name, self.now_s)
        elif idle and (len(self.contexts) == 12 or self.random.random() < 0.75):
            self.arrive(self.random.choice(idle))
        elif len(self.contexts) < 12:
            name = f"{self.ids:03}"
            self.contexts[name] = self.random.randrange(500, 4000)
            self.arrive(name)

    def arrive(self, name: str) -> None:
        tokens = max(self.contexts[name] + self.random.choice((-300, 100, 400, 3000)), 1)
        request = Request(self.ids, name, 0, self.now_s, self.now_s, tokens, is_last=False)
        self.ids += 1
        self.open[name] = request
        self.policy.arrived(request, self.now_s)
        self.router.arrives(name, tokens, request.id)

    def admit(self) -> None:
        while True:
            name = self.next_turn()
            waiting = [n for n in self.open if n not in self.running]
            let_through = [n for n in waiting if self.router.all[n].active]
            assert name == (min(let_through, key=lambda n: self.open[n].id) if let_through
                            else self.router.admits()), self.now_s  # fmt: skip
            if name is None:
                return
            last = self.router.all[name].prompt
            share = self.random.choice((0.0, 0.95, 1.0))
            cached = int(share * (last if last is not None else 300))
            self.policy.scheduled(self.open[name], self.now_s, cached)
            self.router.starts(name, cached)
            self.running.add(name)

    def next_turn(self) -> str | None:
        """Return the program whose turn the engine admits next."""
        waiting = [self.open[name] for name in self.open if name not in self.running]
        for request in sorted(waiting, key=lambda r: self.policy.rank(r, self.now_s)):
            answer = self.policy.admit(request, 0, self.now_s)
            if answer == "run":
                return request.program_id
            self.passed_over += answer == "skip"
            if answer == "stop":
                return None
        return None

    def finish(self, name: str) -> None:
        request = self.open.pop(name)
        self.running.remove(name)
        request.output_tokens = self.random.randrange(1, 800)
        self.contexts[name] = request.prompt_tokens + request.output_tokens
        ttl_s = self.policy.finished(request, self.now_s).ttl_s
        self.router.ends_turn(name, request.prompt_tokens, request.output_tokens)
        p = self.router.all[name]
        expected_s = p.expires_s - self.now_s if p.active else 0.0
        assert math.isclose(ttl_s, expected_s, abs_tol=1e-9), self.now_s


def test_the_same_programs_are_admitted_and_kept_as_by_the_rules_of_the_router() -> None:
    assert sum(World(seed).play() > 0 for seed in range(1000)) > 500
