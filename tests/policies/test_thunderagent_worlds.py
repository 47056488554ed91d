"""Random worlds, in which the policy `thunderagent` holds back the same turns as the authors'
router with one machine (tests/thunderagent_worlds.py)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings

from servers.policies.base import Costs, Request
from servers.policies.thunderagent import ThunderAgent
from tests.thunderagent_worlds import CHECKOUT, SETTINGS, AuthorsRouter, Router, play

WORLDS = 10 * settings().max_examples


class Ours:
    def __init__(self, policy: ThunderAgent) -> None:
        self.policy = policy
        self.now_s = 0.0
        self.ids = 0
        self.open: dict[str, Request] = {}

    def until(self, now_s: float) -> None:
        self.now_s = now_s

    def arrives(self, program: str, tokens: int) -> None:
        turn = Request(self.ids, program, 0, self.now_s, self.now_s, tokens, is_last=False)
        self.ids += 1
        self.open[program] = turn
        self.policy.arrived(turn, self.now_s)

    def ends_turn(self, program: str, tokens: int) -> None:
        turn = self.open.pop(program)
        turn.output_tokens = tokens - turn.prompt_tokens
        self.policy.finished(turn, self.now_s)

    def ends(self, program: str) -> None:
        self.policy.program_ended(program, self.now_s)

    def places(self) -> dict[str, int | None]:
        answers = {n: self.policy.admit(turn, 0, self.now_s) for n, turn in self.open.items()}
        return {name: 0 if answer == "run" else None for name, answer in answers.items()}


def held_back(seed: int, reference_of: type[Router] | type[AuthorsRouter]) -> int:
    random = Random(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    capacity = random.randrange(2000, 20_000)
    policy = ThunderAgent(Costs(lambda n: n / 1000, kv_tokens=capacity), **settings)
    return play(random, Ours(policy), reference_of([capacity], **settings))


def test_the_same_turns_are_held_back_as_by_the_rules_of_the_router() -> None:
    assert sum(held_back(seed, Router) > 0 for seed in range(WORLDS)) > WORLDS / 2


@pytest.mark.skipif(not CHECKOUT, reason="TURNSTILE_THUNDERAGENT is no checkout of ThunderAgent")
def test_the_same_turns_are_held_back_as_by_the_authors_code() -> None:
    assert sum(held_back(seed, AuthorsRouter) > 0 for seed in range(WORLDS)) > WORLDS / 2
