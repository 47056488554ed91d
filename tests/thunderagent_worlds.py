"""Random worlds for `thunderagent`, the policy and the router, and what they are compared with.

`Router` states the rules of the authors' router again, from its code at a7eef77
(github.com/ThunderAgent-org/ThunderAgent, MIT licence): every tick, with sums over all programs.
With TURNSTILE_THUNDERAGENT set to a checkout, `AuthorsRouter` plays the same worlds with theirs.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

CHECKOUT = os.environ.get("TURNSTILE_THUNDERAGENT", "")
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"acting_weight": 0.5},
    {"acting_decay": True},
    {"resume_after_s": 12.0},
    {"acting_decay": True, "resume_after_s": 17.0},
)


class Player(Protocol):
    """What plays a world."""

    def until(self, now_s: float) -> None: ...
    def arrives(self, program: str, tokens: int) -> None: ...
    def ends_turn(self, program: str, tokens: int) -> None: ...
    def ends(self, program: str) -> None: ...
    def places(self) -> dict[str, int | None]:
        """Return the machine of each program with an open turn; None if the turn is held back."""


class Reference(Player, Protocol):
    def close(self) -> None: ...


class Router:
    """The rules of the authors' router, without its network."""

    def __init__(
        self,
        capacities: list[int],
        acting_weight: float = 1.0,
        acting_decay: bool = False,
        resume_after_s: float = 1800.0,
    ) -> None:
        self.capacities, self.weight, self.decay = capacities, acting_weight, acting_decay
        self.patience_s = resume_after_s
        self.now_s = 0.0
        self.ticks = 0
        self.all: dict[str, SimpleNamespace] = {}
        self.pool: dict[str, int] = {}
        """Paused programs in the order of their pause, with the tokens that they had then."""

    def machines(self) -> range:
        return range(len(self.capacities))

    def on(self, machine: int) -> list[str]:
        return [n for n, p in self.all.items() if n not in self.pool and p.machine == machine]

    def used(self, machine: int) -> int:
        mine = [self.all[name] for name in self.on(machine)]
        acting = self.weight * sum(p.tokens for p in mine if not p.reasons)
        return int(sum(p.tokens for p in mine if p.reasons) + acting)

    def left(self, machine: int) -> int:
        return self.capacities[machine] - self.used(machine) - 100 * len(self.on(machine))

    def left_to_resume(self, machine: int) -> int:
        if not self.decay:
            return self.left(machine)
        mine = [self.all[name] for name in self.on(machine)]
        acting = sum(p.tokens * 2.0 ** (p.since - self.now_s) for p in mine if not p.reasons)
        used = int(sum(p.tokens for p in mine if p.reasons) + acting)
        return self.capacities[machine] - used - 100 * len(mine)

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
                name = min(waits, key=lambda n: waits[n])
                if self.all[name].machine is None:
                    self.all[name].machine = min(
                        self.machines(), key=lambda machine: len(self.on(machine))
                    )
                del self.pool[name]
        self.now_s = now_s

    def resume(self) -> None:
        rooms = [[self.left_to_resume(machine), machine] for machine in self.machines()]
        rooms = [room for room in rooms if room[0] > 100]
        by_size = sorted(self.pool, key=lambda n: self.pool[n])
        first = [n for n in by_size if self.all[n].steps == 1]
        later = [n for n in by_size if n not in first and self.all[n].reasons]
        idle = [n for n in by_size if n not in first and n not in later]
        total, chosen = sum(room[0] for room in rooms), []
        for name in later + first + idle:
            if self.all[name].tokens + 100 <= total:
                total -= self.all[name].tokens + 100
                chosen.append(name)
        for name in sorted(chosen, key=lambda n: -self.all[n].tokens):
            rooms.sort(key=lambda room: -room[0])
            if rooms and self.all[name].tokens + 100 <= rooms[0][0]:
                rooms[0][0] -= self.all[name].tokens + 100
                self.all[name].machine = rooms[0][1]
                del self.pool[name]
                rooms = [room for room in rooms if room[0] > 100]

    def pause(self) -> None:
        for machine in self.machines():
            while self.left(machine) < 0:
                acting = [n for n in self.on(machine) if not self.all[n].reasons]
                if not acting:
                    for name in self.on(machine):
                        self.all[name].marked = True
                    break
                name = min(acting, key=lambda n: self.all[n].tokens)
                self.pool[name] = self.all[name].tokens

    def arrives(self, program: str, tokens: int) -> None:
        if program not in self.all:
            fit = [m for m in self.machines() if self.left(m) >= tokens + 100]
            home = min(fit, key=self.used) if fit and not self.pool else None
            self.all[program] = SimpleNamespace(steps=0, marked=False, machine=home)
            if home is None:
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

    def close(self) -> None:
        pass

    def places(self) -> dict[str, int | None]:
        open_turns = [n for n, p in self.all.items() if p.reasons]
        return {n: None if n in self.pool else self.all[n].machine for n in open_turns}


class AuthorsRouter:
    """The authors' code on a clock of ours, with machines that are always healthy."""

    def __init__(
        self,
        capacities: list[int],
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
            [str(machine) for machine in range(len(capacities))],
            acting_token_weight=acting_weight,
            use_acting_token_decay=acting_decay,
        )
        self.router.char_to_token_ratio = 1.0
        wait = self.router._wait_for_resume
        self.router._wait_for_resume = lambda name, p: wait(name, p, timeout=resume_after_s)
        for machine, capacity in enumerate(capacities):
            self.router.backends[str(machine)].metrics_client = SimpleNamespace(
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

    def close(self) -> None:
        for task in self.open.values():
            task.cancel()
        self.settle()
        self.loop.close()

    def places(self) -> dict[str, int | None]:
        return {
            name: int(self.router.programs[name].backend_url) if task.done() else None
            for name, task in self.open.items()
        }


def play(
    random: Random, ours: Player, reference: Reference, programs: int = 12, machines: int = 1
) -> int:
    """Play a world of at most so many programs, on machines of 2,000 to 20,000 tokens. Return how
    often turns were held back."""
    players: tuple[Player, ...] = (ours, reference)
    contexts: dict[str, int] = {}
    open_turns: dict[str, int] = {}
    now_s, held_back = 0.0, 0
    for number in range(40 + 20 * machines):
        # No two turns time out at once: the authors' event loop has no order of such timers.
        now_s += 0.001 + random.choice((0.0, 0.25, 1.0, 2.5, 7.0)) / machines
        for each in players:
            each.until(now_s)
        places = ours.places()
        assert places == reference.places(), number
        running = [name for name, machine in places.items() if machine is not None]
        held_back += len(places) - len(running)
        idle = [name for name in contexts if name not in open_turns]
        if running and random.random() < 0.45:
            name = random.choice(running)
            contexts[name] = open_turns.pop(name) + random.randrange(1, 300)
            for each in players:
                each.ends_turn(name, contexts[name])
        elif idle and random.random() < 0.15:
            name = random.choice(idle)
            del contexts[name]
            for each in players:
                each.ends(name)
        elif idle or len(contexts) < programs:
            if not idle or (len(contexts) < programs and random.random() < 0.3):
                name = f"program {number}"
                contexts[name] = random.randrange(100, 4000)
            else:
                name = random.choice(idle)
            open_turns[name] = contexts[name] + 50 * (number % 20)
            for each in players:
                each.arrives(name, open_turns[name])
    reference.close()
    return held_back
