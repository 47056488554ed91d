"""Costs learned from steps: a machine's own formula is found, and stalls have no effect."""

from __future__ import annotations

import random

import pytest

from servers.policies.base import Costs
from servers.vllm.plugin.learned_costs import (
    MAX_GROUPS,
    MIN_STEPS,
    LearnedCosts,
    Observed,
    least_squares,
)

GUESS = Costs(
    prefill_s=lambda tokens: 0.001 + tokens / 1000,
    step_tokens=2048,
    kv_tokens=1e6,
    decode_step_s=lambda turns, context: 0.1 + turns / 100 + context / 1e6,
)


def step_s(prefill: int, pairs: int, turns: int, context: int) -> float:
    """The steps of a machine: 10 ms, 50 us per token of a prompt, 2 ns per pair, 0.1 ms per turn
    and 0.1 us per context token."""
    return 0.01 + 5e-5 * prefill + 2e-9 * pairs + 1e-4 * turns + 1e-7 * context


def learn(learned: LearnedCosts, steps: int, stalls: float = 0.0) -> None:
    rng = random.Random(3)
    for _ in range(steps):
        turns, context = rng.randrange(1, 65), rng.randrange(500, 8000)
        prefill = rng.choice((0, rng.randrange(100, 2048)))
        pairs = prefill * rng.randrange(20_000) + prefill * (prefill + 1) // 2 if prefill else 0
        seconds = step_s(prefill, pairs, turns, turns * context)
        seconds += 5.0 * (rng.random() < stalls)
        learned.observe(prefill, pairs, turns, turns * context, seconds)


@pytest.mark.parametrize("stalls", [0.0, 0.05])
def test_costs_are_those_of_the_machine_within_5_percent_even_if_steps_stall(
    stalls: float,
) -> None:
    learned = LearnedCosts(GUESS)
    learn(learned, 3000, stalls)
    costs = learned.costs
    # 4000 tokens are two steps and 4000 * 4001 / 2 pairs.
    assert costs.prefill_s(4000) == pytest.approx(0.02 + 0.2 + 2e-9 * 8_002_000, rel=0.05)
    assert costs.decode_s(32, 128_000) == pytest.approx(0.01 + 0.0032 + 0.0128, rel=0.05)


def test_before_any_step_the_costs_are_those_of_the_guess() -> None:
    costs = LearnedCosts(GUESS).costs
    assert costs.decode_s(8, 8192) == pytest.approx(0.1 + 0.08 + 8192 / 1e6)
    assert costs.prefill_s(4096) == pytest.approx(4.097)
    assert (costs.step_tokens, costs.kv_tokens, costs.reload_s) == (2048, 1e6, None)


def test_one_long_step_changes_nothing() -> None:
    learned = LearnedCosts(GUESS)
    before = learned.costs.decode_s(8, 8000)
    for _ in range(MIN_STEPS - 1):
        learned.observe(0, 0, 8, 8000, 60.0)
    assert learned.costs.decode_s(8, 8000) == before


def test_steps_of_one_kind_scale_the_guess_of_all_others() -> None:
    learned = LearnedCosts(GUESS)
    for _ in range(100):
        learned.observe(0, 0, 8, 8192, GUESS.decode_s(8, 8192) / 4)
    assert learned.costs.decode_s(64, 500_000) == pytest.approx(
        GUESS.decode_s(64, 500_000) / 4, rel=0.01
    )


def test_memory_is_bounded_whatever_steps_there_are() -> None:
    learned = LearnedCosts(GUESS)
    rng = random.Random(1)
    for _ in range(5000):
        learned.observe(0, 0, 2 ** rng.randrange(40), 2 ** rng.randrange(60), 0.1)
    assert len(learned._decode._groups) == MAX_GROUPS


def test_a_weight_that_would_be_negative_is_zero() -> None:
    # 1 + 1 takes 1 s and 1 + 2 takes 3 s: exactly with weights -1 and 2. Without the first weight,
    # the relative terms are 1 and 2/3, and the best weight is (1 + 2/3) / (1 + 4/9) = 15/13.
    rows = [(Observed((1.0, 1.0, 0.0), 1.0), 1.0), (Observed((1.0, 2.0, 0.0), 3.0), 1.0)]
    assert least_squares(rows) == pytest.approx((0.0, 15 / 13, 0.0))
