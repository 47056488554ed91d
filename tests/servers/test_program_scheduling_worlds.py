"""Random worlds, in which `program-scheduling` sends the same turns to the same replicas, and holds
back the same, as the rules of its source.

`Rules` states them again from `vllm-project/router`, `src/program_scheduling/` (commits 02b9331 and
a77107f, `scheduler_global.rs` at 3881953, Apache-2.0): tests/progress_rules.py for each replica,
and what concerns several of them here. As there, the tokens in use are those of the latest report
and the sum of all changes since.
"""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

from servers.routers.base import Replica, RoutedTurn
from servers.routers.hash_ring import HashRing
from servers.routers.program_scheduling import ProgramScheduling
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

BINDINGS = (
    "consistent_hash",
    "least_program_count",
    "program_round_robin",
    "reasoning_token_balance",
)


class Rank(Machine):
    """A replica."""

    def __init__(self, index: int, capacity: int) -> None:
        super().__init__()
        self.index, self.capacity = index, capacity
        self.observed, self.delta, self.waiting_turns = 0.0, 0.0, 0

    def usage(self) -> float:
        return max(self.observed + self.delta, 0.0)


class Rules:
    def __init__(self, capacities: list[int], settings: dict[str, Any]) -> None:
        self.ranks = [Rank(index, capacity) for index, capacity in enumerate(capacities)]
        self.ring = HashRing(len(capacities))
        self.binding = settings["binding_strategy"]
        self.low = settings["low_watermark_ratio"]
        self.high = settings["high_watermark_ratio"]
        self.gate = settings["admission_waiting_request_threshold"]
        self.moves = settings["global_queue"]
        self.fcfs = settings["resume_order"] == "fcfs"
        self.retention_s = settings["paused_retention_ttl_s"]
        self.patience_s = settings["force_resume_timeout_s"]
        self.now_s, self.bound = 0.0, 0
        self.all: dict[str, SimpleNamespace] = {}
        """Programs; `rank` is their last target, and `home` the place of their open turns."""

    # Programs

    def active(self, rank: Rank) -> list[SimpleNamespace]:
        return [p for p in self.all.values() if p.active and p.rank is rank]

    def waiting(self, rank: Rank | None = None) -> list[SimpleNamespace]:
        return [
            p
            for p in self.all.values()
            if p.open and not p.active and (rank is None or p.rank is rank)
        ]

    def limit(self, rank: Rank) -> float:
        return rank.capacity * float(self.low)

    def position(self, p: SimpleNamespace, fcfs: bool) -> Any:
        mru = () if fcfs else (math.inf if p.finished_s is None else -p.finished_s,)
        return (p.deadline_s > self.now_s, p.yielded, *mru, p.queued_s, p.name)

    def pause_idle(self, p: SimpleNamespace) -> None:
        p.rank.delta -= tokens(p)
        pause(p)
        p.paused_s = self.now_s

    def release(self, p: SimpleNamespace) -> None:
        if p.active:
            p.rank.delta -= tokens(p)
        del self.all[p.name]

    # Decisions

    def decide(self, arriving: SimpleNamespace | None = None) -> None:
        for p in list(self.all.values()):
            if p.active and not p.open and p.expires_s <= self.now_s:
                self.pause_idle(p)
                p.rounds_since_ttl = 0
        for p in list(self.all.values()):
            if not p.active and not p.open and self.now_s - p.paused_s >= self.retention_s:
                self.release(p)
        for rank in self.ranks:
            high = rank.capacity * self.high
            args = (self.limit(rank), high, self.now_s, self.pause_idle, arriving)
            rank.repair(self.active(rank), rank.usage(), *args)
        while local := next(filter(self.fits_at_home, self.resume_order()), None):
            self.commit(local, local.rank)
        while self.moves and (move := self.next_move()):
            self.commit(*move)

    def resume_order(self) -> list[SimpleNamespace]:
        return sorted(self.waiting(), key=lambda p: self.position(p, self.fcfs))

    def fits_at_home(self, p: SimpleNamespace) -> bool:
        return self.admissible_at(p, p.rank)

    def admissible_at(self, p: SimpleNamespace, rank: Rank) -> bool:
        if self.gate and rank.waiting_turns >= self.gate:
            return False
        if p.deadline_s <= self.now_s:
            return True
        return rank.admissible(p, self.active(rank), rank.usage(), self.limit(rank))

    def commit(self, p: SimpleNamespace, rank: Rank) -> None:
        p.rank = rank
        admit(p, self.now_s)
        rank.delta += tokens(p)
        p.first, p.dispatched_s, p.deadline_s = True, self.now_s, math.inf

    def next_move(self) -> tuple[SimpleNamespace, Rank] | None:
        paused = [p for p in self.waiting() if p.finished_s is not None]
        for p in sorted(paused, key=lambda p: self.position(p, fcfs=True)):
            ranks = [rank for rank in self.ranks if self.may_move(p, rank)]
            if ranks:
                return p, min(ranks, key=lambda rank: self.load(p, rank))
        return None

    def may_move(self, p: SimpleNamespace, rank: Rank) -> bool:
        if rank is p.rank or self.waiting(rank):
            return False
        if not (p.rank.target() and rank.target()) or self.now_s - p.queued_s < 1.0:
            return False
        if self.gate and p.rank.waiting_turns < self.gate:
            mine = self.position(p, self.fcfs)
            others = [q for q in self.waiting(p.rank) if self.now_s - q.queued_s >= 1.0]
            if not any(self.position(q, self.fcfs) < mine for q in others):
                return False
        room = max(self.limit(rank) - rank.usage(), 0)
        if room < max(self.limit(p.rank) - p.rank.usage(), 0) + 1.2 * p.context:
            return False
        return self.admissible_at(p, rank)

    def load(self, p: SimpleNamespace, rank: Rank) -> Any:
        active = self.active(rank)
        share = (rank.usage() + tokens(p) + rank.reserve(active)) / rank.capacity
        return rank.waiting_turns, share, len(active), rank.index

    def patience(self, p: SimpleNamespace) -> float:
        ranks = self.ranks if self.moves else [p.rank]
        if any(not rank.target() or not rank.per_s() for rank in ranks):
            return float(self.patience_s)
        ahead: float = sum(rank.ahead(self.active(rank)) for rank in ranks)
        for q in self.resume_order():
            if q is p:
                break
            ahead += q.rank.target() if q.rank in ranks else 0
        per_s = sum(rank.per_s() for rank in ranks)
        return float(min(max(3 * ahead / per_s, 30.0), self.patience_s))

    def bind(self, name: str) -> Rank:
        self.bound += 1
        loads = [[*self.active(rank), *self.waiting(rank)] for rank in self.ranks]
        match self.binding:
            case "consistent_hash":
                return self.ranks[self.ring.replica(name)]
            case "least_program_count":
                return min(self.ranks, key=lambda rank: len(loads[rank.index]))
            case "program_round_robin":
                return self.ranks[(self.bound - 1) % len(self.ranks)]
        left = [r.capacity - sum(map(tokens, loads[r.index])) for r in self.ranks]
        return max(self.ranks, key=lambda rank: left[rank.index])

    # Events

    def tick(self, now_s: float, reports: list[tuple[int, int, int]]) -> None:
        self.now_s = now_s
        for rank, (running, waiting, used) in zip(self.ranks, reports, strict=True):
            reasoning = [p for p in self.active(rank) if p.open]
            acting = [p for p in self.active(rank) if not p.open]
            estimate: float = used
            if running:
                estimate = used * max(len(reasoning), running) / running
            elif reasoning:
                estimate = sum(map(tokens, reasoning))
            rank.observed, rank.delta = estimate + sum(map(tokens, acting)), 0.0
            rank.waiting_turns = waiting
        self.decide()

    def wake_s(self) -> float:
        deadlines_s = [p.deadline_s for p in self.waiting() if p.deadline_s > self.now_s]
        return min(deadlines_s, default=math.inf)

    def wakes(self, now_s: float) -> None:
        self.now_s = now_s
        self.decide()

    def arrives(self, name: str, prompt: int, now_s: float) -> None:
        self.now_s = now_s
        if name not in self.all:
            rank = self.bind(name)
            self.all[name] = new_program(name)
            vars(self.all[name]).update(rank=rank, deadline_s=math.inf, queued_s=now_s)
        p = self.all[name]
        before = tokens(p)
        p.rank.arrives(p, prompt, now_s)
        if p.active:
            p.rank.delta += tokens(p) - before
        else:
            p.queued_s, p.deadline_s = now_s, math.inf
            p.deadline_s = now_s + self.patience(p)
        self.decide(p)

    def ends_turn(
        self, name: str, prompt: int, output: int, cached: int, last: bool, now_s: float
    ) -> None:
        self.now_s = now_s
        p = self.all[name]
        p.cached, before = cached, tokens(p)
        ttl_s = p.rank.ends_turn(p, prompt, output, now_s)
        p.rank.delta += tokens(p) - before
        if last:
            self.release(p)
        elif p.marked:
            self.pause_idle(p)
        elif p.rounds >= MOST_ROUNDS and self.waiting(p.rank):
            self.pause_idle(p)
            p.yielded = True
        else:
            p.expires_s = now_s + ttl_s
        self.decide()

    def places(self) -> dict[str, int | None]:
        return {p.name: p.rank.index if p.active else None for p in self.all.values() if p.open}


class World:
    """A random world of 1 to 3 replicas, which the router and the rules both see."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        sizes = [random.randrange(6000, 40_000) for _ in range(2)]
        capacities = [random.choice(sizes) for _ in range(random.randint(1, 3))]
        low = random.choice((1.0, 1.0, 0.8))
        settings: dict[str, Any] = {
            "binding_strategy": BINDINGS[seed % 4],
            "global_queue": random.random() < 0.5,
            "resume_order": random.choice(("mru", "mru", "fcfs")),
            "admission_waiting_request_threshold": random.choice((1, 1, 2, 0)),
            "force_resume_timeout_s": random.choice((300.0, 40.0)),
            "paused_retention_ttl_s": random.choice((1800.0, 20.0)),
            "low_watermark_ratio": low,
            "high_watermark_ratio": random.choice((low, 1.0)),
        }
        self.replicas = [Replica(i, tokens, costs(tokens)) for i, tokens in enumerate(capacities)]
        self.ours = ProgramScheduling(
            self.replicas,
            stats_window_size=WINDOW,
            max_segment_rounds=MOST_ROUNDS,
            max_active_programs=MOST_ACTIVE,
            **settings,
        )
        self.rules = Rules(capacities, settings)
        self.open: dict[str, RoutedTurn] = {}
        self.contexts: dict[str, int] = {}
        self.lasts: dict[str, int] = {}
        """Prompts of the last turns that ended."""
        self.homes: dict[str, int] = {}
        self.now_s, self.ids, self.ticks, self.held_back, self.moves = 0.0, 0, 0, 0, 0

    def play(self) -> None:
        for _ in range(40 + 20 * len(self.replicas)):
            self.pass_time(self.random.choice((0.0, 0.25, 0.5, 0.5, 1.5, 8.0)) + 0.001)
            self.happens()
            places = {n: None if t.replica < 0 else t.replica for n, t in self.open.items()}
            assert places == self.rules.places(), self.ids
            self.held_back += list(places.values()).count(None)

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while True:
            tick_s, wake_s = self.ticks + 1.0, self.rules.wake_s()
            assert self.ours.wake_s(self.now_s) == (None if wake_s == math.inf else wake_s)
            self.now_s = min(tick_s, wake_s)
            if self.now_s > until_s:
                break
            if self.now_s == tick_s:
                self.ticks += 1
                self.rules.tick(tick_s, [self.report(replica) for replica in self.replicas])
                self.take(self.ours.tick(tick_s))
            else:
                self.rules.wakes(self.now_s)
                self.take(self.ours.resumed(self.now_s))
        self.now_s = until_s

    def report(self, replica: Replica) -> tuple[int, int, int]:
        turns = [turn for turn in self.open.values() if turn.replica == replica.index]
        replica.running = self.random.randint(0, len(turns))
        replica.waiting = self.random.choice((0, 0, 0, len(turns) - replica.running))
        share = self.random.random() if turns else 0.0
        replica.used_tokens = int(share * replica.kv_tokens)
        return replica.running, replica.waiting, replica.used_tokens

    def happens(self) -> None:
        idle = [name for name in self.contexts if name not in self.open]
        running = [name for name, turn in self.open.items() if turn.replica >= 0]
        if running and self.random.random() < 0.5:
            self.finish(self.random.choice(running))
        elif idle and (len(self.contexts) == 24 or self.random.random() < 0.75):
            self.arrive(self.random.choice(idle))
        elif len(self.contexts) < 24:
            name = f"{self.ids:03}"
            self.contexts[name] = self.random.randrange(500, 4000)
            self.arrive(name)

    def arrive(self, name: str) -> None:
        prompt = max(self.contexts[name] + self.random.choice((-300, 100, 400, 3000)), 1)
        turn = self.open[name] = RoutedTurn(self.ids, name, 0, self.now_s, prompt, False)
        self.ids += 1
        replica = self.ours.route(turn, self.now_s)
        turn.replica = -1 if replica is None else replica
        self.take(self.ours.resumed(self.now_s))
        self.rules.arrives(name, prompt, self.now_s)

    def finish(self, name: str) -> None:
        turn = self.open.pop(name)
        turn.output_tokens = self.random.randrange(1, 800)
        last = self.lasts.get(name)
        share = self.random.choice((0.0, 0.95, 1.0))
        turn.cached_tokens = int(share * min(300 if last is None else last, turn.prompt_tokens))
        turn.is_last = self.random.random() < 0.1
        self.lasts[name] = turn.prompt_tokens
        self.contexts[name] = turn.prompt_tokens + turn.output_tokens
        self.ours.finished(turn, self.now_s)
        if turn.is_last:
            del self.contexts[name]
            self.ours.program_ended(name, self.now_s)
        self.take(self.ours.resumed(self.now_s))
        cached, output = turn.cached_tokens, turn.output_tokens
        last_turn, prompt = turn.is_last, turn.prompt_tokens
        self.rules.ends_turn(name, prompt, output, cached, last_turn, self.now_s)

    def take(self, sent: Any) -> None:
        for turn, replica in sent:
            assert turn.replica == -1
            self.moves += self.homes.setdefault(turn.program_id, replica) != replica
            self.homes[turn.program_id] = turn.replica = replica


def test_turns_go_where_the_rules_send_them_in_100_worlds() -> None:
    worlds = [World(seed) for seed in range(100)]
    for world in worlds:
        world.play()
    assert sum(world.held_back > 0 for world in worlds) > 50
    assert sum(world.moves for world in worlds) > 10
