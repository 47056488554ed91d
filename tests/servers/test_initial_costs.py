"""The costs that the plug-in begins with: a guess from the model's configuration, on an A100."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from servers.vllm.plugin.initial_costs import initial_costs


def config(
    gpus: int = 1,
    stages: int = 1,
    cache_dtype: str = "auto",
    quantization: str | None = None,
    head_size: int = 128,
    **text: Any,
) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(**text),
            get_head_size=lambda: head_size,
            use_mla="kv_lora_rank" in text,
            quantization=quantization,
        ),
        device_config=SimpleNamespace(device_type="cuda"),
        parallel_config=SimpleNamespace(tensor_parallel_size=gpus, pipeline_parallel_size=stages),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
    )


DENSE = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936,
}  # fmt: skip
"""Qwen3-8B, which has 7.6 billion parameters without the embedding of its input."""
EXPERTS = DENSE | {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip
"""Qwen3-30B-A3B: 30.2 and 3.0 billion."""

LATENT = EXPERTS | {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "v_head_dim": 128, "num_experts": 256,
    "moe_intermediate_size": 2048, "vocab_size": 129280,
}  # fmt: skip
"""DeepSeek-V3: 671 and 37 billion. vLLM's head size is that of the latent vector, 512 + 64."""


def decode_s(costs: Any, turns: int, context_tokens: int) -> float:
    return float(costs.decode_step_s(turns, context_tokens))


def test_a_dense_model_computes_all_parameters_for_each_token() -> None:
    costs = initial_costs(config(**DENSE))
    tokens_s = 0.005 + 2 * 7.57e9 * 1000 / 156e12
    attention_s = 2 * 36 * 32 * 128 * 1000**2 / 156e12
    assert costs.prefill_s(1000) == pytest.approx(tokens_s + attention_s, rel=1e-3)
    assert costs.step_tokens == 8192
    assert costs.reload_s is None


def test_a_step_computes_no_more_tokens_than_vllm_schedules() -> None:
    limited = config(**DENSE)
    limited.scheduler_config.max_num_scheduled_tokens = 2048
    assert initial_costs(limited).step_tokens == 2048


def test_a_decode_step_reads_the_weights_and_the_kv_of_its_context() -> None:
    costs = initial_costs(config(**DENSE))
    # 2 · 36 layers · 8 heads · 128 values of 2 bytes are 147,456 bytes per token.
    read_s = (2 * 7.57e9 + 147_456 * 100_000) / 1.5e12
    assert decode_s(costs, 0, 100_000) == pytest.approx(0.005 + read_s, rel=1e-3)
    fp8 = initial_costs(config(cache_dtype="fp8", quantization="fp8", **DENSE))
    assert decode_s(fp8, 0, 100_000) == pytest.approx(0.005 + read_s / 2, rel=1e-3)


def test_a_token_is_multiplied_with_its_experts_only() -> None:
    costs = initial_costs(config(**EXPERTS))
    assert costs.prefill_s(1) == pytest.approx(0.005 + 2 * 3.04e9 / 156e12, rel=1e-3)
    assert decode_s(costs, 0, 0) == pytest.approx(0.005 + 2 * 30.2e9 / 1.5e12, rel=0.01)


def test_latent_attention_keeps_one_vector_of_a_token_in_each_layer() -> None:
    costs = initial_costs(config(head_size=576, **LATENT))
    assert costs.prefill_s(1) == pytest.approx(0.005 + 2 * 37e9 / 156e12, rel=0.01)
    weights_s = decode_s(costs, 0, 0)
    assert weights_s == pytest.approx(0.005 + 2 * 671e9 / 1.5e12, rel=0.06)
    # 61 layers · 576 values of 2 bytes.
    read_s = 70_272 * 100_000 / 1.5e12
    assert decode_s(costs, 0, 100_000) - weights_s == pytest.approx(read_s)


def test_of_a_list_with_a_value_per_layer_the_largest_counts() -> None:
    layers = config(**DENSE | {"intermediate_size": [8192, 12288, 4096]})
    assert initial_costs(layers).prefill_s(9) == initial_costs(config(**DENSE)).prefill_s(9)


@pytest.mark.parametrize("shares", [{"gpus": 2}, {"stages": 2}])
def test_gpus_that_share_a_model_share_its_costs(shares: dict[str, int]) -> None:
    one, two = (initial_costs(config(**DENSE, **each)).prefill_s(1000) for each in ({}, shares))
    assert two - 0.005 == pytest.approx((one - 0.005) / 2)


def test_a_model_without_attention_has_costs_too() -> None:
    assert initial_costs(config(hidden_size=1024, num_hidden_layers=8)).prefill_s(100) > 0.005
