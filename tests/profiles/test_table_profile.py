"""The larger step formula, and its fit to operator tables."""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import product

import orjson
import pytest

from servers.profiles import Profile, TableProfile, profile_of
from servers.profiles.from_tables import (
    KNOTS,
    RISES_FROM,
    TableStep,
    TableSteps,
    fit_table_steps,
)
from servers.profiles.rebuild import prefill_ps

FIELDS = {
    "hardware": "test-gpu",
    "model": "test-model",
    "provenance": "operator-table",
    "kv_blocks": 100,
    "block_tokens": 16,
    "max_model_len": 1600,
    "kv_bytes_per_token": 1000,
    "dram_bytes_per_s": 1e9,
    "ssd_bytes_per_s": 1e9,
    "base_ps": 1,
    "weights_ps": 0,
    "token_ps": 30,
    "sequence_ps": 0,
    "context_ps": 3,
    "pair_ps": 7,
    "request_ps": 0,
    "knots": ((1, 1000), (11, 1100), (21, 1500)),
    "decode_ps": 200,
    "prefill_ps": 70,
    "mean_context_ps": 5,
}
TABLE = TableProfile(**FIELDS)  # type: ignore[arg-type]

GPU = TableSteps(
    knots=tuple(
        (tokens, ps * 10**8)
        for tokens, ps in zip(
            KNOTS, (50, 51, 49, 52, 55, 56, 59, 64, 80, 118, 215, 417, 840, 1712), strict=True
        )
    ),
    token_ps=20_000_000,
    decode_ps=1_200_000_000,
    prefill_ps=300_000_000,
    mean_context_ps=12_000,
    context_ps=42_000,
    pair_ps=790,
    base_ps=0,
    weights_ps=0,
    request_ps=0,
)
"""About an 8B model on an H100."""
SHAPES = [
    *((n, cached, 0, 0) for n in (512, 2048, 8192, 32768) for cached in (0, 4096, 32768)),
    *((0, 0, b, c) for b in (1, 4, 16, 32, 64, 128, 256) for c in (128, 2048, 8192)),
    *product((256, 1024, 4096), (0, 8192), (1, 32), (512, 8192)),
]


def test_a_decode_step_is_a_point_between_two_knots_and_its_contexts() -> None:
    # 6 tokens: halfway from 1000 to 1100; 6 turns read 60 tokens, 10 on average
    assert TABLE.step_ps(6, 6, 60, 0) == 1 + 1050 + 60 * 3 + (200 + 10 * 5)


def test_a_prefill_step_past_the_last_knot_rises_by_token_ps() -> None:
    assert TABLE.step_ps(31, 1, 0, 496) == 1 + (1500 + 10 * 30) + 496 * 7 + 70


def test_a_mixed_step_has_the_fixed_costs_of_both_and_the_mean_context_of_its_decodes() -> None:
    # 11 tokens are a knot; the chunk is one of the 6 turns, so that 5 decodes read 60 tokens
    assert TABLE.step_ps(11, 6, 60, 21) == 1 + 1100 + 180 + 21 * 7 + (200 + 12 * 5) + 70


def test_a_step_of_one_token_is_the_first_knot() -> None:
    assert TABLE.step_ps(1, 1, 100, 0) == 1 + 1000 + 300 + 200 + 500


@pytest.mark.parametrize(("decodes", "chunk"), [(5, 0), (5, 6), (0, 6), (1, 0)])
def test_the_next_step_of_the_same_turns_takes_the_increment_longer(
    decodes: int, chunk: int
) -> None:
    tokens, turns, context = decodes + chunk, decodes + bool(chunk), 61 * decodes
    pairs = chunk * 10 + chunk * (chunk + 1) // 2
    now = TABLE.step_ps(tokens, turns, context, pairs)
    after = TABLE.step_ps(tokens, turns, context + decodes, pairs + chunk * chunk)
    assert after - now == TABLE.increment_ps(decodes, chunk)


def test_a_policy_gets_the_sum_of_the_prefill_steps() -> None:
    # steps of 21 and 4 tokens, 25 · 26 / 2 pairs
    steps = (1 + 1500 + 70) + (1 + 1000 + 3 * 10 + 70)
    assert prefill_ps(TABLE, 21, 25) == steps + 325 * 7


def test_a_profile_comes_back_from_json_as_what_it_was() -> None:
    own = {field.name for field in fields(Profile)} & {*FIELDS}
    for made in (TABLE, Profile(**{name: FIELDS[name] for name in own})):  # type: ignore[arg-type]
        assert profile_of(orjson.loads(orjson.dumps(asdict(made)))) == made


def timed(shape: tuple[int, int, int, int]) -> TableStep:
    return TableStep.of(*shape, GPU.step_seconds(TableStep.of(*shape, 1.0)))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_fit_computes_a_step_as_the_profile_does(shape: tuple[int, int, int, int]) -> None:
    chunk, _, batch, _ = shape
    profile = TableProfile(**{**FIELDS, **GPU.model_dump()})  # type: ignore[arg-type]
    step = TableStep.of(*shape, 1.0)
    ps = profile.step_ps(step.tokens, batch + bool(chunk), step.context, step.pairs)
    assert 1e12 * GPU.step_seconds(step) == pytest.approx(ps, rel=1e-9)


def test_times_of_the_formula_are_fitted_without_error() -> None:
    found = fit_table_steps([timed(shape) for shape in SHAPES])
    for shape in SHAPES:
        step = timed(shape)
        assert found.step_seconds(step) == pytest.approx(step.seconds, rel=1e-6), shape
    assert found.context_ps == pytest.approx(GPU.context_ps, rel=1e-4)
    assert found.pair_ps == pytest.approx(GPU.pair_ps, rel=0.01)


def test_the_time_of_a_small_batch_may_fall_with_more_turns() -> None:
    # FP8 experts on a B200: one turn takes 28 ms, eight take 20 ms
    times = ((1, 0.028), (2, 0.025), (4, 0.020), (8, 0.020), (16, 0.021))
    found = fit_table_steps([TableStep.of(0, 0, batch, 1, ms) for batch, ms in times])
    for batch, seconds in times:
        step = TableStep.of(0, 0, batch, 1, seconds)
        assert found.step_seconds(step) == pytest.approx(seconds, rel=0.001)


def test_no_coefficient_is_negative_and_no_prefill_is_cheaper_with_more_tokens() -> None:
    falling = [TableStep.of(n, 0, 0, 0, 1 / n) for n in (10, 100, 1000, 10_000)]
    found = fit_table_steps([*falling, TableStep.of(0, 0, 4, 100, 0.01)])
    values = found.model_dump()
    knots = [ps for _, ps in values.pop("knots")]
    assert knots[RISES_FROM:] == sorted(knots[RISES_FROM:])
    assert min(values.values()) >= 0
