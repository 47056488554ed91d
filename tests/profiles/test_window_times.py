"""Step times of layers with a sliding window, calculated by hand."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.profiles import Profile, WindowTimes, analytic_profile, profile_of
from servers.profiles.files import profile_for
from servers.profiles.rebuild import prefill_ps
from servers.profiles.reference_steps import reference_steps
from tests.sim.worlds import profile

WINDOW = WindowTimes(tokens=4, context_ps=100, pair_ps=7)
ONLY_WINDOW: Profile = replace(
    profile(base_ps=0, weights_ps=0, token_ps=0, context_ps=0, pair_ps=0), window=WINDOW
)


def test_a_decode_reads_its_context_but_at_most_the_window() -> None:
    # 1 + 3 + 4 + 4 + 4 tokens
    assert ONLY_WINDOW.batch_ps([], [1, 3, 4, 5, 1000]) == 16 * 100


@pytest.mark.parametrize(
    ("computed", "chunk", "pairs"),
    [
        (0, 1, 1),
        (0, 3, 1 + 2 + 3),
        (0, 6, 1 + 2 + 3 + 4 + 4 + 4),
        (2, 3, 3 + 4 + 4),
        (3, 2, 4 + 4),
        (1000, 5, 20),
    ],
)
def test_each_token_of_a_chunk_has_as_many_pairs_as_the_window_holds(
    computed: int, chunk: int, pairs: int
) -> None:
    assert ONLY_WINDOW.batch_ps([(chunk, computed)], []) == pairs * 7


@given(computed=st.integers(0, 20), chunk=st.integers(0, 20), window=st.integers(1, 12))
def test_pairs_are_the_sum_over_the_tokens(computed: int, chunk: int, window: int) -> None:
    each = [min(computed + i, window) for i in range(1, chunk + 1)]
    assert WindowTimes(window, 0, 0).pairs(computed, chunk) == sum(each)


def test_layers_with_and_without_a_window_add_up() -> None:
    both = replace(ONLY_WINDOW, base_ps=10_000, context_ps=1, pair_ps=2)
    # decodes at 3 and 9 read 12 tokens, and 3 + 4 in the window; 2 tokens after 5 have 6 + 7 pairs,
    # and 4 + 4 in the window
    assert both.batch_ps([(2, 5)], [3, 9]) == 10_000 + 12 + 700 + 26 + 56


def test_policies_count_the_pairs_of_the_window_when_a_context_is_rebuilt() -> None:
    # 10 tokens: 1 + 2 + 3 + 7 × 4 pairs, in whatever chunks
    assert prefill_ps(ONLY_WINDOW, step_tokens=3, tokens=10) == 34 * 7
    assert prefill_ps(ONLY_WINDOW, step_tokens=100, tokens=10) == 34 * 7
    prompt = reference_steps(analytic_profile("h100", "gemma-3-12b"), 2048)[0]
    assert prompt.ms == prefill_ps(analytic_profile("h100", "gemma-3-12b"), 2048, 8192) / 1e9


def test_gemma_reads_8_layers_for_all_tokens_and_40_for_the_last_1024() -> None:
    gemma = analytic_profile("h100", "gemma-3-12b")
    # 8,192 bytes per layer and token at 0.75 × 3.35 TB/s; per pair and layer 4 × 16 heads × 256
    # FLOPs at 0.65 × 989 TFLOP/s
    assert (gemma.context_ps, gemma.pair_ps) == (26_084, 204)
    assert gemma.window == WindowTimes(tokens=1024, context_ps=130_420, pair_ps=1_019)
    short, long = (gemma.batch_ps([], [tokens] * 32) for tokens in (1024, 65_536))
    assert long - short == 32 * (65_536 - 1024) * 26_084


def test_tables_of_gpt_oss_contain_its_windows_which_are_not_added_again() -> None:
    tables = profile_for("h100", "gpt-oss-120b", gpus=1)
    assert (tables.provenance, tables.window) == ("operator-table", None)
    analytic = analytic_profile("h100", "gpt-oss-120b", gpus=1)
    assert analytic.window is not None
    assert analytic.window.tokens == 128


def test_a_profile_with_a_window_survives_json() -> None:
    gemma = analytic_profile("h100", "gemma-3-12b")
    assert profile_of(asdict(gemma)) == gemma


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_a_longer_context_of_gpt_oss_costs_about_as_much_as_in_the_tables(gpu: str) -> None:
    """From 16,384 to 65,536 tokens only the layers without a window read more."""
    analytic, tables = (
        found.batch_ps([], [65_536] * 8) - found.batch_ps([], [16_384] * 8)
        for found in (
            analytic_profile(gpu, "gpt-oss-120b", gpus=2),
            profile_for(gpu, "gpt-oss-120b", gpus=2),
        )
    )
    assert analytic == pytest.approx(tables, rel=0.35)
