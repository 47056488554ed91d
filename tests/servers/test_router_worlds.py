"""Random worlds, in which the router `thunderagent` sends the same turns to the same replicas, and
holds back the same, as the authors' router (tests/thunderagent_worlds.py)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings

from servers.policies.base import Costs
from servers.routers.base import Replica, RoutedTurn
from servers.routers.thunderagent import ThunderAgent
from tests.thunderagent_worlds import CHECKOUT, SETTINGS, AuthorsRouter, Router, play

WORLDS = 10 * settings().max_examples


class Ours:
    """The router, which is called as `Fleet` calls it."""

    def __init__(self, router: ThunderAgent) -> None:
        self.router = router
        self.now_s = 0.0
        self.ids = self.ticks = 0
        self.open: dict[str, RoutedTurn] = {}

    def until(self, now_s: float) -> None:
        while True:
            tick_s = 5.0 * (self.ticks + 1)
            wake_s = self.router.wake_s(self.now_s)
            due_s = tick_s if wake_s is None else min(tick_s, wake_s)
            if due_s > now_s:
                break
            if due_s == tick_s:
                self.ticks += 1
                sent = self.router.tick(due_s)
            else:
                sent = self.router.resumed(due_s)
            for turn, replica in sent:
                turn.replica = replica
        self.now_s = now_s

    def arrives(self, program: str, tokens: int) -> None:
        turn = self.open[program] = RoutedTurn(self.ids, program, 0, self.now_s, tokens, False)
        self.ids += 1
        replica = self.router.route(turn, self.now_s)
        turn.replica = -1 if replica is None else replica
        assert not self.router.resumed(self.now_s)

    def ends_turn(self, program: str, tokens: int) -> None:
        turn = self.open.pop(program)
        turn.output_tokens = tokens - turn.prompt_tokens
        self.router.finished(turn, self.now_s)

    def ends(self, program: str) -> None:
        self.router.program_ended(program, self.now_s)

    def places(self) -> dict[str, int | None]:
        return {n: None if t.replica < 0 else t.replica for n, t in self.open.items()}


def held_back(seed: int, reference_of: type[Router] | type[AuthorsRouter]) -> int:
    """Play a world of 1 to 4 machines, of which some have equal capacities."""
    random = Random(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    sizes = [random.randrange(2000, 20_000) for _ in range(2)]
    capacities = [random.choice(sizes) for _ in range(random.randint(1, 4))]
    replicas = [Replica(i, tokens, Costs(float)) for i, tokens in enumerate(capacities)]
    ours = Ours(ThunderAgent(replicas, **settings))
    machines = len(capacities)
    return play(random, ours, reference_of(capacities, **settings), 8 * machines, machines)


def test_turns_go_where_the_rules_of_the_router_send_them() -> None:
    assert sum(held_back(seed, Router) > 0 for seed in range(WORLDS)) > WORLDS / 2


@pytest.mark.skipif(not CHECKOUT, reason="TURNSTILE_THUNDERAGENT is no checkout of ThunderAgent")
def test_turns_go_where_the_authors_code_sends_them() -> None:
    assert sum(held_back(seed, AuthorsRouter) > 0 for seed in range(WORLDS)) > WORLDS / 2
