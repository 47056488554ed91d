"""Sparse attention with an indexer: parameters, KV, blocks and step times, calculated by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servers.basics.errors import DoesNotFit, InvalidInput
from servers.profiles import MODELS, TableProfile, analytic_profile, hardware, notes
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.profiles.kv_groups import block_tokens_of
from servers.profiles.kv_memory import FULL_ATTENTION
from servers.profiles.models.config import model_of
from tests.sentences import mentions

V32, GLM_5, GLM_5_2 = (MODELS[name] for name in ("deepseek-v3.2", "glm-5.1-fp8", "glm-5.2-fp8"))
LATENT = 512 + 64
M3: dict[str, Any] = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "dense_intermediate_size": 12_288,
        "num_hidden_layers": 60,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 200_064,
        "max_position_embeddings": 1_048_576,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "use_qk_norm": True,
        "use_routing_bias": True,
        "moe_layer_freq": [0] * 3 + [1] * 57,
        "sparse_attention_config": {
            "sparse_index_dim": 128,
            "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
            "sparse_attention_freq": [0] * 3 + [1] * 57,
        },
    },
}
"""The text part of nvidia/MiniMax-M3-NVFP4, without its formats."""


def of(**changes: Any) -> Any:
    return model_of({**GLM_5_2.config, **changes}, "a-model")


def test_an_indexer_has_queries_of_its_heads_and_one_key_per_token() -> None:
    dense = MODELS["deepseek-v3"]
    # 64 heads of 128 from 1,536 entries; a key of 128 and 64 weights from the hidden size; a norm
    indexer = 64 * 128 * 1536 + (128 + 64) * 7168 + 2 * 128
    assert V32.params - dense.params == 61 * indexer
    assert pytest.approx(671.9e9, rel=1e-3) == V32.params
    assert GLM_5.params == pytest.approx(744e9, rel=1e-3)  # "744B", as its model page says
    assert GLM_5.token_params == pytest.approx(40e9, rel=0.01)


def test_a_key_has_a_byte_per_dimension_and_a_scale_and_each_gpu_keeps_a_copy() -> None:
    assert V32.kv_bytes_per_token == 61 * (2 * LATENT + 128 + 4)
    assert V32.kv_bytes_per_token_on(8) == 8 * V32.kv_bytes_per_token


def test_layers_share_the_choice_of_the_last_layer_with_an_indexer() -> None:
    # the first 3 layers, and every 4th of the other 75 after them: 6, 10, … 74, and 78 is none
    assert [kind.layers for kind in GLM_5_2.kinds] == [21, 57]
    assert GLM_5_2.kv_bytes_per_token == 78 * 2 * LATENT + 21 * 132
    assert of(index_topk_pattern="FFSS").kinds[0].layers == 2 + 74


@pytest.mark.parametrize(
    ("gpu", "dtype", "entry_bytes"),
    [
        ("h200", KvCacheDtype.AUTO, 2 * LATENT),
        # 16 bytes of scales, and a rotary part of 16 bits
        ("h200", KvCacheDtype.FP8, 512 + 16 + 128),
        ("b200", KvCacheDtype.FP8, LATENT),
        ("rtx-pro-6000-server", KvCacheDtype.AUTO, 656),
    ],
)
def test_the_format_of_kv_follows_from_the_kernels_of_the_gpu(
    gpu: str, dtype: KvCacheDtype, entry_bytes: int
) -> None:
    assert with_kv_cache(V32, dtype, hardware(gpu)).kv_bytes_per_token == 61 * (entry_bytes + 132)


def test_glm_has_kv_in_8_bits_on_blackwell_without_being_asked() -> None:
    b200 = with_kv_cache(GLM_5, KvCacheDtype.AUTO, hardware("b200"))
    assert b200.kv_bytes_per_token == 78 * (LATENT + 132)


def test_all_layers_share_blocks_of_64_tokens_with_the_bytes_of_both_caches() -> None:
    profile = analytic_profile("h200", "deepseek-v3.2")
    assert (profile.kv_groups, profile.block_tokens) == (FULL_ATTENTION, 64)
    assert profile.kv_bytes_per_token == 8 * 78_324
    assert analytic_profile("h200", "deepseek-v3.2", block_tokens=80).block_tokens == 128


def test_attention_reads_the_chosen_tokens_and_the_indexer_all_keys() -> None:
    profile = analytic_profile("h200", "deepseek-v3.2")
    memory, bf16, fp8 = 0.75 * 4.8, 0.65 * 8 * 989.5, 0.65 * 1979  # TB/s and TFLOP/s
    assert profile.window is not None
    assert profile.window.tokens == 2048
    # a copy on each of 8 GPUs, each read by its own GPU
    assert profile.window.context_ps == round(61 * 2 * LATENT / memory)
    assert profile.context_ps == round(61 * 132 / memory)
    # queries of 128 heads are multiplied with latent vectors: 576 for the score, 512 for the value
    assert profile.window.pair_ps == round(2 * 61 * 128 * (LATENT + 512) / bf16)
    # and those of the indexer's 64 heads with keys, on each GPU
    assert profile.pair_ps == round(2 * 61 * 64 * 128 / fp8)


def test_kernels_of_sparse_attention_add_three_times_per_layer(tmp_path: Path) -> None:
    profile, llm = analytic_profile("h200", "deepseek-v3.2"), V32
    products_s = 2 * llm.token_params / (8 * 1979e12 * 0.3)
    reduced_s = 2 * 61 * 7168 * 2 * 2 * 7 / 8 / (450e9 * 0.8)
    # 0.45 µs in each of 61 layers to choose tokens for one of a prompt
    assert profile.token_ps == round((products_s + 61 * 0.45e-6 + reduced_s) * 1e12)
    assert isinstance(profile, TableProfile)
    assert profile.decode_ps == round(61 * 0.22e9)
    assert profile.prefill_ps == round(61 * 0.8e9)
    (tmp_path / "config.json").write_text(json.dumps(M3))  # tables of its kernels were not compared
    m3 = analytic_profile("h200", str(tmp_path))
    assert isinstance(m3, TableProfile)
    assert (m3.decode_ps, m3.prefill_ps) == (0, 0)


def test_minimax_m3_has_an_indexer_beside_the_keys_and_values_of_all_but_three_layers() -> None:
    llm = model_of(M3, "m3")
    queries, keys = 64 * 128, 4 * 128
    attention = 6144 * (2 * queries + 2 * keys) + 2 * 128
    indexer = 6144 * (4 * 128 + 128) + 2 * 128
    experts = 6144 * 128 + 128 + 129 * 3 * 6144 * 3072
    layers = 60 * (attention + 2 * 6144) + 57 * (indexer + experts) + 3 * 3 * 6144 * 12_288
    assert llm.params == layers + 2 * 200_064 * 6144 + 6144
    # keys and values of 4 heads, and on each GPU a key of the indexer, in 16 bits
    assert llm.kv_bytes_per_token == 60 * 2 * keys * 2 + 57 * 256
    assert llm.kv_bytes_per_token_on(8) == 8 * (60 * 2 * 128 * 2 + 57 * 256)
    assert block_tokens_of(llm, 8, 16) == 128
    # a decode reads all of 3 layers and all keys, and 16 blocks of 128 tokens in the others
    assert llm.window == 2048
    assert llm.read_bytes_per_token_on(1, windows=True) == 57 * 2 * keys * 2
    assert llm.read_bytes_per_token_on(1, windows=False) == 3 * 2 * keys * 2 + 57 * 256
    assert llm.flops_per_pair(windows=False) == 2 * 3 * 64 * 256
    fp8 = with_kv_cache(llm, KvCacheDtype.FP8, hardware("h100"))
    assert fp8.kv_bytes_per_token == 60 * 2 * keys + 57 * 256


@pytest.mark.parametrize(("gpu", "gpus"), [("h200", 8), ("mi300x", 8), ("b300", 4)])
def test_minimax_m3_runs_on_all_gpus_with_room(gpu: str, gpus: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(M3))
    profile = analytic_profile(gpu, str(tmp_path))
    assert profile.kv_bytes_per_token == model_of(M3, "m3").kv_bytes_per_token_on(gpus)
    with pytest.raises(DoesNotFit, match=r"8 GPUs are not enough; .* h200 or b200"):
        analytic_profile("a100-80g", str(tmp_path))


def test_experts_listed_one_by_one_have_one_format() -> None:
    expert = "language_model.model.layers.9.block_sparse_moe.experts.0.w1"
    section = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {expert: {"quant_algo": "NVFP4", "group_size": 16}},
    }
    saved = 128 * 3 * 6144 * 3072 * (2 - 4.5 / 8)
    mixed = model_of({**M3, "quantization_config": section}, "m3")
    assert model_of(M3, "m3").weight_bytes - mixed.weight_bytes == saved


def test_a_note_states_what_is_assumed() -> None:
    said = notes(analytic_profile("h200", "glm-5.2-fp8"))
    assert mentions(said, "2,048 tokens", "21 of 78 layers", "65% of published FP8", "0.22 ms")


@pytest.mark.parametrize("gpu", ["a100-80g", "l40s", "mi300x"])
def test_a_gpu_without_kernels_is_refused_with_those_that_have_some(gpu: str) -> None:
    with pytest.raises(DoesNotFit, match=f"on {gpu}: its sparse .* on h100, h200, h20, b200"):
        analytic_profile(gpu, "deepseek-v3.2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_topk": None}, "lacks index_topk"),
        ({"index_topk_freq": 0}, "index_topk_freq is 0: must be a whole number from 1"),
        ({"index_topk_pattern": "SF"}, "pattern is 'SF': must be text of F .* with F first"),
        ({"index_topk_pattern": ["F"]}, "must be text of F"),
        ({"q_lora_rank": None}, "lacks q_lora_rank"),
    ],
)
def test_unusable_fields_of_an_indexer_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        of(**changes)


@pytest.mark.parametrize("listed", [None, [1] * 59, [1] * 61, [2] * 60, ["F"] * 60])
def test_lists_of_layers_have_0_or_1_for_each_layer(listed: object) -> None:
    sparse = {**M3["text_config"]["sparse_attention_config"], "sparse_attention_freq": listed}
    text = {**M3["text_config"], "sparse_attention_config": sparse}
    with pytest.raises(InvalidInput, match=r"sparse_attention_freq is .* 0 or 1"):
        model_of({**M3, "text_config": text}, "m3")
