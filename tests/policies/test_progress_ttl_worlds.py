"""Random worlds, in which `progress-ttl` admits the same programs as the rules of its router
(tests/progress_rules.py) with one machine."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import settings

from servers.policies.base import Request
from servers.policies.progress_ttl import ProgressTtl
from tests.progress_rules import (
    MOST_ACTIVE,
    MOST_ROUNDS,
    WINDOW,
    Machine,
    admit,
    costs,
    new_program,
    pause,
    tokens,
)


class Router:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.now_s = 0.0
        self.machine = Machine()
        self.all: dict[str, SimpleNamespace] = {}

    def active(self) -> list[SimpleNamespace]:
        return [p for p in self.all.values() if p.active]

    def used(self) -> int:
        return sum(map(tokens, self.active()))

    def until(self, now_s: float) -> None:
        for p in self.active():
            if p.expires_s <= now_s:
                pause(p)
                p.rounds_since_ttl = 0
        self.now_s = now_s

    def repair(self) -> None:
        limit = self.capacity
        self.machine.repair(self.active(), self.used(), limit, limit, self.now_s, pause)

    def arrives(self, name: str, prompt: int, number: int) -> None:
        p = self.all.setdefault(name, new_program(name))
        self.machine.arrives(p, prompt, self.now_s)
        p.came_s, p.number = self.now_s, number
        if p.active:
            self.repair()
        else:
            p.deadline_s = self.now_s + self.patience_s(p)

    def patience_s(self, p: SimpleNamespace) -> float:
        target, per_s = self.machine.target(), self.machine.per_s()
        if not target or not per_s:
            return 300.0
        p.deadline_s = math.inf
        ahead = self.machine.ahead(self.active()) + target * self.waiting().index(p)
        return min(max(3 * ahead / per_s, 30.0), 300.0)

    def waiting(self) -> list[SimpleNamespace]:
        def position(p: SimpleNamespace) -> Any:
            last_s = -1.0 if p.finished_s is None else p.finished_s
            return (p.deadline_s > self.now_s, p.yielded, -last_s, p.came_s, p.number)

        return sorted((p for p in self.all.values() if p.open and not p.active), key=position)

    def admits(self) -> str | None:
        return next((p.name for p in self.waiting() if self.admissible(p)), None)

    def admissible(self, p: SimpleNamespace) -> bool:
        if p.deadline_s <= self.now_s:
            return True
        return self.machine.admissible(p, self.active(), self.used(), self.capacity)

    def starts(self, name: str, cached: int) -> None:
        p = self.all[name]
        p.cached, p.first, p.dispatched_s = cached, not p.active, self.now_s
        if not p.active:
            admit(p, self.now_s)

    def ends_turn(self, name: str, prompt: int, output: int) -> None:
        p = self.all[name]
        others = [q for q in self.waiting() if q is not p]
        ttl_s = self.machine.ends_turn(p, prompt, output, self.now_s)
        if p.marked:
            pause(p)
        elif p.rounds >= MOST_ROUNDS and others:
            pause(p)
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
        self.policy = ProgressTtl(
            costs(capacity), window=WINDOW, most_rounds=MOST_ROUNDS, most_active=MOST_ACTIVE
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
    worlds = 10 * settings().max_examples
    assert sum(World(seed).play() > 0 for seed in range(worlds)) > worlds / 2
