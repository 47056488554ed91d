"""Fits of coefficients to measured times recover the coefficients that generated the times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servers.profiles.fit import (
    Observation,
    Steps,
    decode_step,
    fit_quadratic,
    fit_steps,
    prompt,
)

GPU = Steps(
    base_ps=1_000_000_000,
    weights_ps=6_400_000_000,
    token_ps=50_000_000,
    sequence_ps=200_000_000,
    context_ps=30_000,
    pair_ps=1_500,
    request_ps=4_000_000_000,
)
"""1 ms per step, weights worth 128 tokens, 0.2 ms per turn, 4 ms per request: about an 8B model on
a large GPU."""
STEP_TOKENS = 2048
SHAPES: list[Observation] = [
    *(prompt(n, 0, STEP_TOKENS, 1.0) for n in (32, 128, 512, 2048, 8192, 32768)),
    *(prompt(n, 4096, STEP_TOKENS, 1.0) for n in (32, 256, 1024)),
    *(decode_step(b, c, 1.0) for b in (1, 4, 16, 64) for c in (150, 2100, 8200)),
]


def timed(shape: Observation, steps: Steps) -> Observation:
    return replace(shape, seconds=steps.seconds(shape))


def test_the_cost_of_a_prompt_has_full_chunks_a_last_chunk_and_attention_pairs() -> None:
    observation = prompt(5000, 0, 2048, 1.0)
    assert observation.steps == (2048, 2048, 904)
    assert observation.pairs == 5000 * 5001 // 2
    # Three steps of 1 ms + 0.2 ms for the turn, 5000 tokens of 50 us, pairs of 1.5 ns, and 4 ms.
    assert GPU.seconds(observation) == pytest.approx(0.0036 + 0.25 + 12_502_500 * 1.5e-9 + 0.004)


def test_tokens_after_a_cached_context_also_attend_to_it() -> None:
    observation = prompt(10, 100, 2048, 1.0)
    assert (observation.steps, observation.pairs) == ((10,), 10 * 100 + 55)


def test_a_step_of_few_tokens_takes_as_long_as_reading_the_weights() -> None:
    # 8 * 50 us < 6.4 ms; 8 turns of 0.2 ms; 8 contexts of 1000 tokens, 30 ns each.
    assert GPU.seconds(decode_step(8, 1000, 1.0)) == pytest.approx(
        0.001 + 0.0064 + 0.0016 + 0.00024
    )


def test_exact_times_give_the_original_coefficients() -> None:
    fitted = fit_steps([timed(shape, GPU) for shape in SHAPES])
    for name in Steps.model_fields:
        assert getattr(fitted, name) == pytest.approx(getattr(GPU, name), rel=0.03), name


def test_an_engine_that_never_waits_for_weights_gets_no_weight_time() -> None:
    cpu = Steps(
        base_ps=5_000_000_000,
        weights_ps=120_000_000,
        token_ps=120_000_000,
        context_ps=200_000,
        pair_ps=30_000,
        request_ps=8_000_000_000,
    )
    fitted = fit_steps([timed(shape, cpu) for shape in SHAPES])
    assert fitted.base_ps + fitted.weights_ps == pytest.approx(5.12e9, rel=0.001)
    assert fitted.token_ps == pytest.approx(120_000_000, rel=0.001)


def test_no_coefficient_is_negative_even_if_times_decrease_with_length() -> None:
    fitted = fit_steps([prompt(n, 0, 2048, 1 / n) for n in (10, 100, 1000, 10_000)])
    assert min(fitted.base_ps, fitted.token_ps, fitted.pair_ps, fitted.request_ps) >= 0


def test_a_quadratic_is_fitted_exactly_and_never_decreases() -> None:
    lengths = [100, 1000, 5000, 20_000]
    seconds = [0.01 + 1e-4 * n + 2e-8 * n * n for n in lengths]
    assert fit_quadratic(lengths, seconds) == pytest.approx((0.01, 1e-4, 2e-8))
    assert fit_quadratic([1, 2, 3], [3.0, 2.0, 1.0])[1:] == (0, 0)
