"""The points at which `bench profile --show` prints a profile."""

from __future__ import annotations

from dataclasses import replace

from servers.profiles import analytic_profile
from servers.profiles.rebuild import prefill_ps
from servers.profiles.reference_steps import reference_steps

H100 = analytic_profile("h100", "llama-3.1-8b")
ONLY_ATTENTION = replace(H100, base_ps=0, weights_ps=0, token_ps=0, sequence_ps=0)
ONLY_PAIRS = replace(ONLY_ATTENTION, context_ps=0, pair_ps=1_000_000)


def test_a_prompt_takes_as_long_as_policies_assume() -> None:
    first, second, *_ = reference_steps(H100, 2048)
    assert (first.kind, first.what) == ("prefill", {"tokens": 8192, "cached": 0})
    assert first.ms == prefill_ps(H100, 2048, 8192) / 1e9
    assert second.ms == prefill_ps(H100, 2048, 32768) / 1e9


def test_tokens_after_a_cached_context_attend_to_it() -> None:
    # 1024 · 31744 + 1024 · 1025 / 2 pairs of a microsecond, in one step or in several
    for step_tokens in (2048, 1000, 64):
        assert reference_steps(ONLY_PAIRS, step_tokens)[2].ms == 33_030.656


def test_the_mixed_step_has_an_eighth_of_the_pairs_of_a_prompt_of_16384() -> None:
    assert reference_steps(ONLY_PAIRS, 2048)[-1].ms == 16384 * 16385 / 2 / 8 / 1000


def test_decodes_are_batches_at_contexts() -> None:
    points = reference_steps(ONLY_ATTENTION, 2048)[3:6]
    assert [point.what for point in points] == [
        {"batch": 1, "context": 2048},
        {"batch": 32, "context": 2048},
        {"batch": 32, "context": 16384},
    ]
    assert [round(1e9 * point.ms) // H100.context_ps for point in points] == [2048, 65536, 524288]
