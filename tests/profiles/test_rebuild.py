"""The cost of rebuilding a context: the step formula, summed over chunks."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.clock import PS_PER_S
from servers.profiles import Profile, analytic_profile, costs
from servers.profiles.rebuild import prefill_ps

SMALL = Profile(
    hardware="toy",
    model="toy",
    provenance="measured",
    kv_blocks=100,
    block_tokens=16,
    max_model_len=1600,
    kv_bytes_per_token=1000,
    base_ps=100,
    weights_ps=50,
    token_ps=10,
    sequence_ps=7,
    context_ps=1,
    pair_ps=2,
    request_ps=0,
    dram_bytes_per_s=4000.0,
    ssd_bytes_per_s=1000.0,
)


def test_ten_tokens_in_chunks_of_four_take_three_steps() -> None:
    # two steps of 100 + max(50, 40) + 7, one of 100 + max(50, 20) + 7, and 55 pairs of 2
    assert prefill_ps(SMALL, step_tokens=4, tokens=10) == 157 + 157 + 157 + 110


def test_chunks_that_take_longer_than_the_weights_cost_per_token() -> None:
    # one step of 100 + max(50, 80) + 7, one of 100 + max(50, 20) + 7, and 55 pairs of 2
    assert prefill_ps(SMALL, step_tokens=8, tokens=10) == 187 + 157 + 110


def test_rebuilding_no_tokens_costs_nothing() -> None:
    free = costs(SMALL, step_tokens=8, offload=True)
    assert (free.prefill_s(0), free.rebuild_s(0)) == (0.0, 0.0)


@given(
    step_tokens=st.integers(1, 64),
    tokens=st.integers(0, 2000),
    weights=st.integers(0, 2000),
)
def test_the_closed_form_is_the_sum_over_chunks(
    step_tokens: int, tokens: int, weights: int
) -> None:
    profile = replace(SMALL, weights_ps=weights)
    total, computed = 0, 0
    while computed < tokens:
        chunk = min(step_tokens, tokens - computed)
        pairs = sum(computed + i + 1 for i in range(chunk))
        total += profile.base_ps + max(weights, chunk * profile.token_ps) + profile.sequence_ps
        total += pairs * profile.pair_ps
        computed += chunk
    assert prefill_ps(profile, step_tokens, tokens) == total


@given(short=st.integers(0, 100_000), more=st.integers(1, 10_000))
def test_a_longer_context_always_costs_more(short: int, more: int) -> None:
    rebuild = costs(analytic_profile("b200", "llama-3.1-8b"), step_tokens=2048, offload=False)
    assert rebuild.prefill_s(short + more) > rebuild.prefill_s(short)


def test_reload_is_bytes_over_bandwidth_and_replaces_the_prefill() -> None:
    rebuild = costs(SMALL, step_tokens=8, offload=True)
    assert rebuild.reload_s is not None
    assert rebuild.rebuild_s(12) == 12 * 1000 / 4000
    assert rebuild.step_tokens == 8


def test_without_offload_there_is_no_reload() -> None:
    rebuild = costs(SMALL, step_tokens=8, offload=False)
    assert rebuild.reload_s is None
    assert rebuild.rebuild_s(10) == (187 + 157 + 110) / PS_PER_S


def test_8k_tokens_of_llama_8b_take_0_65_seconds_on_an_a100() -> None:
    rebuild = costs(analytic_profile("a100-80g", "llama-3.1-8b"), step_tokens=2048, offload=False)
    # 8192 × 68.832 µs = 563.9 ms, 4 steps of 0.2 ms, 33.56 M pairs of 2585 ps = 86.7 ms
    assert rebuild.prefill_s(8192) == pytest.approx(0.6514, abs=1e-3)


def test_costs_can_be_pickled_for_worker_processes() -> None:
    rebuild = pickle.loads(pickle.dumps(costs(SMALL, step_tokens=8, offload=True)))  # noqa: S301
    assert rebuild.prefill_s(10) == (187 + 157 + 110) / PS_PER_S


def test_chunks_without_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="step_tokens 0: must be at least 1"):
        costs(SMALL, step_tokens=0, offload=False)
