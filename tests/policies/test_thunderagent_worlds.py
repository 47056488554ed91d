"""Random worlds, in which `thunderagent` holds back the same turns as the authors' router.

`Router` states the router's rules again, from its code (github.com/ThunderAgent-org/ThunderAgent at
a7eef77, MIT licence), for one machine: every tick, with sums over all programs. With
TURNSTILE_THUNDERAGENT set to a checkout, the authors' code plays the same worlds.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from servers.policies.base import Costs, Request
from servers.policies.thunderagent import ThunderAgent

CHECKOUT = os.environ.get("TURNSTILE_THUNDERAGENT", "")
SETTINGS = ({}, {}, {"acting_weight": 0.5}, {"acting_decay": True}, {"resume_after_s": 12.0})


class Reference(Protocol):
    def until(self, now_s: float) -> None: ...
    def arrives(self, program: str, tokens: int) -> None: ...
    def ends_turn(self, program: str, tokens: int) -> None: ...
    def ends(self, program: str) -> None: ...
    def held(self) -> set[str]: ...


class Router:
    """The rules of the authors' router, without its network and its other machines."""

    def __init__(
        self,
        capacity: int,
        acting_weight: float = 1.0,
        acting_decay: bool = False,
        resume_after_s: float = 1800.0,
    ) -> None:
        self.capacity, self.weight, self.decay = capacity, acting_weight, acting_decay
        self.patience_s = resume_after_s
        self.now_s = 0.0
        self.ticks = 0
        self.all: dict[str, SimpleNamespace] = {}
        self.pool: dict[str, int] = {}
        """Paused programs in the order of their pause, with the tokens that they had then."""

    def left(self, decayed: bool = False) -> int:
        on_machine = [p for name, p in self.all.items() if name not in self.pool]
        reasoning = sum(p.tokens for p in on_machine if p.reasons)
        if decayed:
            acting = sum(
                p.tokens * 2.0 ** (p.since - self.now_s) for p in on_machine if not p.reasons
            )
        else:
            acting = self.weight * sum(p.tokens for p in on_machine if not p.reasons)
        return self.capacity - int(reasoning + acting) - 100 * len(on_machine)

    def until(self, now_s: float) -> None:
        while True:
            tick_s = 5.0 * (self.ticks + 1)
            waits = {n: p.waits + self.patience_s for n, p in self.all.items()
                     if n in self.pool and p.reasons}  # fmt: skip
            due_s = min(tick_s, *waits.values(), math.inf)
            if due_s > now_s:
                break
            self.now_s = due_s
            if due_s == tick_s:
                self.ticks += 1
                self.resume()
                self.pause()
            else:
                del self.pool[min(waits, key=lambda n: waits[n])]
        self.now_s = now_s

    def resume(self) -> None:
        left = self.left(self.decay)
        if left <= 100:
            return
        by_size = sorted(self.pool, key=lambda n: self.pool[n])
        first = [n for n in by_size if self.all[n].steps == 1]
        later = [n for n in by_size if n not in first and self.all[n].reasons]
        idle = [n for n in by_size if n not in first and n not in later]
        for name in later + first + idle:
            if self.all[name].tokens + 100 <= left:
                left -= self.all[name].tokens + 100
                del self.pool[name]

    def pause(self) -> None:
        while self.left() < 0:
            acting = [n for n, p in self.all.items() if n not in self.pool and not p.reasons]
            if not acting:
                for name, program in self.all.items():
                    program.marked |= name not in self.pool
                return
            name = min(acting, key=lambda n: self.all[n].tokens)
            self.pool[name] = self.all[name].tokens

    def arrives(self, program: str, tokens: int) -> None:
        if program not in self.all:
            fits = not self.pool and self.left() >= tokens + 100
            self.all[program] = SimpleNamespace(steps=0, marked=False)
            if not fits:
                self.pool[program] = tokens
        vars(self.all[program]).update(tokens=tokens, reasons=True, waits=self.now_s)
        self.all[program].steps += 1

    def ends_turn(self, program: str, tokens: int) -> None:
        vars(self.all[program]).update(tokens=tokens, reasons=False, since=self.now_s)
        if self.all[program].marked:
            self.all[program].marked = False
            self.pool[program] = tokens

    def ends(self, program: str) -> None:
        del self.all[program]
        self.pool.pop(program, None)

    def held(self) -> set[str]:
        return {name for name in self.pool if self.all[name].reasons}


class AuthorsRouter:
    """The authors' code on a clock of ours, with one machine that is always healthy."""

    def __init__(
        self,
        capacity: int,
        acting_weight: float = 1.0,
        acting_decay: bool = False,
        resume_after_s: float = 1800.0,
    ) -> None:
        sys.path[:0] = [CHECKOUT] if CHECKOUT not in sys.path else []
        from ThunderAgent.backend import state  # type: ignore[import-not-found]
        from ThunderAgent.scheduler import router  # type: ignore[import-not-found]

        async def fetch_metrics() -> bool:
            return True

        self.clock = SimpleNamespace(time=lambda: self.now_s)
        state.time = router.time = self.clock
        self.now_s, self.ticks = 0.0, 0
        self.loop = asyncio.new_event_loop()
        self.loop.time = self.clock.time  # type: ignore[method-assign]
        self.router = router.MultiBackendRouter(
            "machine", acting_token_weight=acting_weight, use_acting_token_decay=acting_decay
        )
        self.router.char_to_token_ratio = 1.0
        wait = self.router._wait_for_resume
        self.router._wait_for_resume = lambda name, p: wait(name, p, timeout=resume_after_s)
        self.router.backends["machine"].metrics_client = SimpleNamespace(
            healthy=True,
            cache_config=SimpleNamespace(total_tokens_capacity=capacity),
            fetch_metrics=fetch_metrics,
        )
        self.open: dict[str, Any] = {}

    def settle(self) -> None:
        for _ in range(8):
            self.loop.run_until_complete(asyncio.sleep(0))

    def until(self, now_s: float) -> None:
        while True:
            tick_s = 5.0 * (self.ticks + 1)
            timers = [t.when() for t in self.loop._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
            due_s = min(tick_s, *timers, math.inf)
            if due_s > now_s:
                break
            self.now_s = due_s
            if due_s == tick_s:
                self.ticks += 1
                self.loop.run_until_complete(self.router._scheduled_check())
            self.settle()
        self.now_s = now_s

    def arrives(self, program: str, tokens: int) -> None:
        state = self.router.get_or_create_program(program)
        payload = "x" * (tokens - 2)  # in quotes, so that its length is the number of tokens
        before = self.router.update_program_before_request(program, state, payload)
        self.open[program] = self.loop.create_task(before)
        self.settle()

    def ends_turn(self, program: str, tokens: int) -> None:
        assert self.open.pop(program).result()
        self.router.update_program_after_request(program, self.router.programs[program], tokens)

    def ends(self, program: str) -> None:
        self.loop.run_until_complete(self.router.release_program(program))

    def held(self) -> set[str]:
        return {name for name, task in self.open.items() if not task.done()}


def play(seed: int, reference_of: type[Router] | type[AuthorsRouter]) -> int:
    """Play a world of at most 12 programs on 2,000 to 20,000 tokens; return how often turns were
    held back."""
    random = Random(seed)
    settings: dict[str, Any] = dict(SETTINGS[seed % len(SETTINGS)])
    capacity = random.randrange(2000, 20_000)
    policy = ThunderAgent(Costs(lambda n: n / 1000, kv_tokens=capacity), **settings)
    reference: Reference = reference_of(capacity, **settings)
    open_turns: dict[str, Request] = {}
    contexts: dict[str, int] = {}
    now_s, held_back = 0.0, 0
    for number in range(60):
        now_s += random.choice((0.0, 0.25, 1.0, 2.5, 7.0))
        reference.until(now_s)
        held = {n for n, r in open_turns.items() if policy.admit(r, 0, now_s) == "stop"}
        assert held == reference.held(), (seed, number)
        held_back += len(held)
        idle = [name for name in contexts if name not in open_turns]
        running = [name for name in open_turns if name not in held]
        if running and random.random() < 0.45:
            name = random.choice(running)
            request = open_turns.pop(name)
            request.output_tokens = random.randrange(1, 300)
            contexts[name] = request.prompt_tokens + request.output_tokens
            policy.finished(request, now_s)
            reference.ends_turn(name, contexts[name])
        elif idle and random.random() < 0.15:
            name = random.choice(idle)
            del contexts[name]
            policy.program_ended(name, now_s)
            reference.ends(name)
        elif (idle and random.random() < 0.7) or len(contexts) == 12:
            if idle:
                arrive(policy, reference, random.choice(idle), open_turns, contexts, number, now_s)
        else:
            name = f"program {number}"
            contexts[name] = random.randrange(100, 4000)
            arrive(policy, reference, name, open_turns, contexts, number, now_s)
    return held_back


def arrive(
    policy: ThunderAgent,
    reference: Reference,
    name: str,
    open_turns: dict[str, Request],
    contexts: dict[str, int],
    number: int,
    now_s: float,
) -> None:
    tokens = contexts[name] + 50 * (number % 20)
    open_turns[name] = Request(number, name, 0, now_s, now_s, tokens, is_last=False)
    policy.arrived(open_turns[name], now_s)
    reference.arrives(name, tokens)


def test_the_same_turns_are_held_back_as_by_the_rules_of_the_router_in_1000_worlds() -> None:
    assert sum(play(seed, Router) > 0 for seed in range(1000)) > 500


@pytest.mark.skipif(not CHECKOUT, reason="TURNSTILE_THUNDERAGENT is no checkout of ThunderAgent")
def test_the_same_turns_are_held_back_as_by_the_authors_code_in_1000_worlds() -> None:
    assert sum(play(seed, AuthorsRouter) > 0 for seed in range(1000)) > 500
