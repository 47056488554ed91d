"""Sizes of models from their config.json, worked out from the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from servers.basics.errors import InvalidInput
from servers.profiles import MODELS, Model, analytic_profile
from servers.profiles.kv_groups import pool
from servers.profiles.models.architectures import ARCHITECTURES, OTHER_MEMORY
from servers.profiles.models.config import model_of

DENSE: Mapping[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
MATRICES = 2 * (64 * 64 * 2 + 64 * 16 * 2 + 3 * 64 * 128)
"""Queries, output, keys, values and three of the MLP, in two layers."""
TABLES = 2 * 100 * 64
NORMS = 2 * 2 * 64 + 64


def of(**changes: Any) -> Model:
    return model_of({**DENSE, **changes}, "a-model")


def quantised(**section: Any) -> Model:
    return of(quantization_config=section)


def test_a_dense_model_has_the_weights_of_its_matrices_tables_and_norms() -> None:
    llm = of()
    assert llm.params == MATRICES + TABLES + NORMS
    assert llm.weight_bytes == 2 * llm.params
    assert llm.step_params == llm.params - TABLES // 2
    assert llm.token_params == MATRICES + NORMS


def test_a_tied_table_is_loaded_once_and_read_by_each_step() -> None:
    llm = of(tie_word_embeddings=True)
    assert llm.params == llm.step_params == MATRICES + TABLES // 2 + NORMS


@pytest.mark.parametrize(
    ("top", "text", "tied"),
    [({}, {}, True), (False, {}, False), (True, False, True), ({}, False, False)],
)
def test_the_top_level_of_a_multimodal_config_decides_whether_tables_are_tied(
    top: Any, text: Any, tied: bool
) -> None:
    def field(value: Any) -> dict[str, Any]:
        return value if value == {} else {"tie_word_embeddings": value}

    part = {**DENSE, **field(text), "model_type": "gemma3_text"}
    llm = model_of({"model_type": "gemma3", "text_config": part, **field(top)}, "a-model")
    assert llm.params - llm.step_params == (0 if tied else TABLES // 2)


def test_published_totals_are_met() -> None:
    """Totals of the safetensors index of each checkpoint, as its model page states them."""
    totals = {
        "qwen3-8b": 8_190_735_360,
        "qwen3-30b-a3b": 30_532_122_624,
        "gpt-oss-20b": 20_914_757_184,
        "gemma-3-27b": 27_432_406_640,
        "mistral-small": 24_011_361_280,
    }
    assert {name: MODELS[name].params for name in totals} == totals


MINIMAX_M2_5: Mapping[str, Any] = {
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200_064,
    "max_position_embeddings": 196_608,
}
"""MiniMaxAI/MiniMax-M2.5, without its quantization."""
KIMI_K2_5: Mapping[str, Any] = {
    "model_type": "kimi_k25",
    "text_config": {
        "model_type": "kimi_k2",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "first_k_dense_replace": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "topk_method": "noaux_tc",
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163_840,
        "max_position_embeddings": 262_144,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "ignore": [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            ],
            "config_groups": {
                "group_0": {
                    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
                }
            },
        },
    },
    "vision_config": {
        "vt_hidden_size": 1152,
        "vt_intermediate_size": 4304,
        "vt_num_hidden_layers": 27,
        "patch_size": 14,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
    },
}
"""moonshotai/Kimi-K2.5."""


def test_minimax_m2_has_norms_over_all_heads_and_routers_in_32_bits() -> None:
    llm = model_of(MINIMAX_M2_5, "minimax-m2.5")
    tables = 2 * 200_064 * 3072
    queries, keys = 48 * 128, 8 * 128
    attention = 2 * 3072 * queries + 2 * 3072 * keys + queries + keys
    experts = 256 * 3 * 3072 * 1536
    router = 256 * 3072 + 256
    total = tables + 62 * (attention + experts + router + 2 * 3072) + 3072
    assert llm.params == total
    assert llm.weight_bytes == 2 * total + 2 * 62 * router
    assert llm.params == pytest.approx(230e9, rel=0.01)  # as its model page says
    assert llm.token_params == pytest.approx(10e9, rel=0.05)
    assert llm.kv_bytes_per_token == 62 * 2 * 8 * 128 * 2


def test_qwen3_vl_adds_the_output_of_layers_of_its_tower_to_layers_of_its_text_part() -> None:
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "patch_size": 4,
              "num_position_embeddings": 9, "deepstack_visual_indexes": [0]}  # fmt: skip
    text = {**DENSE, "model_type": "qwen3_vl_text"}
    llm = model_of({"model_type": "qwen3_vl", "text_config": text, "vision_config": vision}, "vl")
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 48 + 48 + 32 + 4 * 32
    merge = 128 * 128 + 128 + 128 * 64 + 64  # of 2 × 2 patches, to the hidden size of 64
    patches = (2 * 3 * 4 * 4 + 1) * 32 + 9 * 32  # two frames of three colours, and positions
    tower = 2 * layer + patches + (2 * 32 + merge) + (2 * 128 + merge)
    assert llm.params - of(model_type="qwen3").params == tower


def test_kimi_k2_5_has_experts_in_4_bits_and_a_vision_tower() -> None:
    llm = model_of(KIMI_K2_5, "kimi-k2.5")
    experts = 60 * 384 * 3 * 7168 * 2048
    # 4 bits, and a scale of 16 bits for each 32 weights; all else has 16 bits, and the router's
    # bias 32
    rest = llm.params - experts
    assert llm.weight_bytes == experts * 4.5 // 8 + rest * 2 + 60 * 384 * 2
    assert llm.params - llm.step_params - 163_840 * 7168 == 471_143_920  # MoonViT and projector
    assert llm.token_params == pytest.approx(32e9, rel=0.05)  # "32B activated"
    assert llm.kv_bytes_per_token == 61 * 576 * 2


@pytest.mark.parametrize(("gpus", "copies"), [(1, 2), (2, 2), (4, 4), (8, 8)])
def test_more_gpus_than_kv_heads_keep_copies(gpus: int, copies: int) -> None:
    # 2 (K, V) × 2 layers × heads or copies × 8 × 2 bytes
    assert of().kv_bytes_per_token_on(gpus) == 2 * 2 * copies * 8 * 2


def test_kv_capacity_on_eight_gpus_follows_from_a_copy_on_each() -> None:
    # 4 KV heads of 128 in 48 layers: 96 KiB per token on 4 GPUs, 192 KiB on 8.
    four, eight = (analytic_profile("h100", "qwen3-30b-a3b", gpus=gpus) for gpus in (4, 8))
    assert (four.kv_bytes_per_token, eight.kv_bytes_per_token) == (96 * 1024, 192 * 1024)
    assert eight.kv_blocks < 1.3 * four.kv_blocks


def test_latent_attention_keeps_one_vector_per_layer_and_a_copy_on_each_gpu() -> None:
    # DeepSeek-V3: 512 latent and 64 rotary entries of 2 bytes in 61 layers
    llm = MODELS["deepseek-v3"]
    assert llm.kv_bytes_per_token == 61 * 576 * 2
    assert llm.kv_bytes_per_token_on(8) == 8 * 61 * 576 * 2
    # per pair: 128 heads × (128 + 64 of the key + 128 of the value), multiplied and added
    assert llm.flops_per_pair(windows=False) == 61 * 2 * 128 * 320
    copied = 7168 * (576 + 1536) * 61
    blocks_scales = 61 * 56 * (5 + 12) * 4
    assert llm.weight_bytes_on(8) - llm.weight_bytes == 7 * (copied + blocks_scales)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gemma-3-12b", {None: 8, 1024: 40}),
        ("gemma-3-27b", {None: 10, 1024: 52}),
        ("gpt-oss-20b", {None: 12, 128: 12}),
        ("gemma-4-26b-a4b", {None: 5, 1024: 25}),
        ("mimo-v2-flash", {None: 9, 128: 39}),
        ("qwen3-8b", {None: 36}),
    ],
)
def test_layers_are_counted_by_window(name: str, kinds: dict[int | None, int]) -> None:
    assert {kind.window: kind.layers for kind in MODELS[name].kinds} == kinds


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"model_type": "mistral", "sliding_window": 512}, {512: 2}),
        ({"model_type": "mistral", "sliding_window": None}, {None: 2}),
        ({"model_type": "mistral"}, {4096: 2}),  # transformers' default
        ({"model_type": "qwen3", "sliding_window": 512}, {None: 2}),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 512,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            {None: 1, 512: 1},
        ),
        ({"model_type": "gemma2", "sliding_window": 512}, {None: 1, 512: 1}),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512},
         {None: 1, 512: 1}),
    ],
)  # fmt: skip
def test_windows_follow_each_architectures_rule(
    changes: dict[str, Any], kinds: dict[int | None, int]
) -> None:
    assert {kind.window: kind.layers for kind in of(**changes).kinds} == kinds


def test_a_step_reads_the_experts_to_which_its_tokens_are_routed() -> None:
    llm = of(model_type="qwen3_moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    experts = 2 * 8 * 3 * 64 * 32 * 2  # bytes in both layers
    all_read = llm.step_bytes()
    assert all_read == 2 * llm.step_params
    assert llm.experts_read(1) == 0.25
    assert llm.step_bytes(1) == all_read - experts * 3 // 4
    assert llm.experts_read(2) == pytest.approx(1 - 0.75**2)
    assert of().step_bytes(1) == of().step_bytes()


def test_first_layers_can_be_dense_and_shared_experts_are_read_by_all_tokens() -> None:
    llm = of(
        model_type="glm4_moe", n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=32, first_k_dense_replace=1,
    )  # fmt: skip
    expert = 3 * 64 * 32
    assert llm.step_params - llm.token_params == 100 * 64 + 6 * expert
    # one dense layer; one with 8 experts, a shared one, and a router with a bias per expert
    mlp = 3 * 64 * 128 + 9 * expert + 8 * 64 + 8
    attention = 2 * (64 * 64 * 2 + 64 * 16 * 2)
    assert llm.params == attention + mlp + TABLES + NORMS


def test_fp8_weights_have_a_byte_each_and_a_scale_per_block() -> None:
    llm = quantised(quant_method="fp8", weight_block_size=[32, 32])
    # 64×64 twice: 4 blocks each; 64×16 twice: 2 each; 64×128 thrice: 8 each, in two layers
    blocks = 2 * (4 * 2 + 2 * 2 + 8 * 3)
    assert llm.weight_bytes == MATRICES + 4 * blocks + 2 * (TABLES + NORMS)
    assert llm.matmul == "fp8"


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, 4 + 20 / 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, 8 + 24 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 4.5),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 4, "type": "int", "group_size": 32,
                                    "strategy": "group", "symmetric": True},
                        "input_activations": None,
                    }
                },
            },
            4.5,
        ),
    ],
)  # fmt: skip
def test_groups_of_weights_share_scales(section: dict[str, Any], bits: float) -> None:
    assert quantised(**section).weight_bytes == MATRICES * bits / 8 + 2 * (TABLES + NORMS)


@pytest.mark.parametrize(
    "kept",
    [
        ["self_attn"],
        ["re:.*self_attn.*"],
        ["model.layers.*.self_attn"],
        ["model.layers.0.self_attn", "model.layers.1.self_attn"],
        ["language_model.model.layers.0.self_attn", "model.language_model.layers.1.self_attn*"],
    ],
)
def test_listed_modules_keep_16_bits(kept: list[str]) -> None:
    llm = quantised(quant_method="fp8", modules_to_not_convert=["lm_head", *kept])
    attention = 2 * (64 * 64 * 2 + 64 * 16 * 2)
    assert llm.weight_bytes == MATRICES + attention + 2 * (TABLES + NORMS)


def test_mxfp4_applies_to_experts_only() -> None:
    llm = MODELS["gpt-oss-20b"]
    experts = 24 * 32 * 3 * 2880 * 2880
    biases = 24 * 32 * (2 * 2880 + 2880)
    rest = llm.params - experts - biases
    assert llm.weight_bytes == experts * 4.25 / 8 + 2 * (biases + rest)
    assert llm.matmul == "bf16"


def test_each_listed_module_of_mixed_formats_has_its_own() -> None:
    formats = {
        "model.language_model.layers.0.mlp.down_proj": {"quant_algo": "FP8"},
        "model.language_model.layers.1.mlp": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "lm_head": {"quant_algo": "MXFP8"},
    }
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    llm = quantised(**section, quantized_layers=formats)
    mlp = 64 * 128
    saved = mlp + 3 * mlp * (2 - 4.5 / 8) + 100 * 64 * (1 - 1 / 32)
    assert of().weight_bytes - llm.weight_bytes == saved
    assert (llm.precision, llm.matmul) == ("FP8 and MXFP8 and NVFP4", "bf16")
    tied = of(tie_word_embeddings=True)
    head = {**section, "quantized_layers": {"lm_head": {"quant_algo": "FP8"}}}
    assert of(tie_word_embeddings=True, quantization_config=head).weights == tied.weights


def test_a_checkpoint_with_fp8_kv_has_half_the_kv() -> None:
    llm = quantised(quant_method="modelopt", quant_algo="FP8", kv_cache_quant_algo="FP8")
    assert 2 * llm.kv_bytes_per_token == of().kv_bytes_per_token


def test_yarn_extends_the_length_that_the_model_was_trained_with() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert of(rope_scaling=yarn).max_model_len == 16_384
    assert of(rope_scaling={"rope_type": "llama3", "factor": 8.0}).max_model_len == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": None}, "lacks num_attention_heads, so that"),
        ({"hidden_size": -5}, "hidden_size is -5: must be a whole number from 1 to"),
        ({"vocab_size": 10**30}, "vocab_size is 1000"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers is 5000: .* from 1 to 1024"),
        ({"hidden_size": float("nan")}, "hidden_size is nan: must be"),
        ({"hidden_size": "32"}, "hidden_size is '32': must be a number, not text; remove"),
        ({"hidden_size": True}, "hidden_size is true"),
        ({"max_position_embeddings": None}, "lacks max_position_embeddings, so that"),
        ({"model_max_length": 0}, "model_max_length is 0: must be"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3: must divide the 8"),
        ({"model_type": "llamma"}, r"is 'llamma', which is not supported; did you mean llama\? "),
        ({"model_type": "gemma3n"}, "not supported: its layers have KV that they share"),
        ({"model_type": "gemma4_text"}, "hidden_size_per_layer_input is 256: embeddings per"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 1}, "num_kv_shared_layers is 1: la"),
        ({"model_type": "qwen3_omni"}, r"is 'qwen3_omni', which is not supported; supported are"),
        ({"model_type": None}, "lacks model_type; supported are llama, "),
        ({"model_type": ["llama"]}, "model_type .*not supported"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1: must be true or false"),
        ({"quantization_config": "fp8"}, "quantization_config: not an object"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method is 'hqq', which is not"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits is 3; use 4 or 8"),
        (
            {"quantization_config": {"quant_algo": "MIXED_PRECISION"}},
            "quantized_layers is None; it must be an object with formats",
        ),
        (
            {"quantization_config": {"quant_algo": "MIXED_PRECISION",
                                     "quantized_layers": {"lm_head": {"quant_algo": "Q3_K"}}}},
            "quantized_layers.lm_head.quant_algo is 'Q3_K'; use FP8, MXFP8, NVFP4 or W4A16_NVFP4",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "ignored_layers": ["re:(a+)+$"]}},
            "too complex",
        ),
        ({"sliding_window": 4, "layer_types": ["full_attention"]}, "must be a list of 2"),
        ({"layer_types": ["full_attention", "chunked_attention"]},
         "layer_types is 'chunked_attention': must be full_attention or sliding_attention"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": float("inf"),
                              "original_max_position_embeddings": 4}},
            "rope_scaling.factor is inf",
        ),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5}, "from 1 to 4"),
        ({"model_type": "glm4_moe", "n_routed_experts": -1}, "n_routed_experts is -1: must be"),
        (
            {"model_type": "mimo_v2", "sliding_window": 4, "hybrid_layer_pattern": [0, 1],
             "swa_num_attention_heads": 4, "swa_num_key_value_heads": 3},
            "swa_num_key_value_heads is 3: must divide the 4 swa_num_attention_heads",
        ),
        (
            {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0,
             "global_head_dim": "512"},
            "global_head_dim is '512': must be a number",
        ),
    ],
)  # fmt: skip
def test_an_unusable_field_is_refused_with_its_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^a-model: .*{message}") as caught:
        of(**changes)
    assert "\n" not in str(caught.value)


LLAMA_4: Mapping[str, Any] = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
    "vocab_size": 202_048,
    "max_position_embeddings": 10_485_760,
}
"""The text part of meta-llama/Llama-4-Scout-17B-16E-Instruct, from aiconfigurator-core 0.12."""


@pytest.mark.parametrize(
    ("changes", "params", "per_token"),
    [
        ({}, 107.8e9, 17e9),
        ({"num_local_experts": 128, "interleave_moe_layer_step": 2}, 400e9, 17e9),
    ],
    ids=["scout", "maverick"],
)
def test_llama_4_has_the_published_parameters(
    changes: dict[str, Any], params: float, per_token: float
) -> None:
    llm = model_of({**LLAMA_4, **changes}, "a-model")
    assert llm.params == pytest.approx(params, rel=0.01)
    tables = 2 * 202_048 * 5120  # counted in the published number
    assert llm.token_params + tables == pytest.approx(per_token, rel=0.02)


def test_three_of_four_layers_of_llama_4_attend_within_a_chunk() -> None:
    llm = model_of(LLAMA_4, "a-model")
    assert [(kind.layers, kind.kv_group) for kind in llm.kinds] == [(36, -8192), (12, None)]
    assert pool(llm, 1, 16)[:2] == ((-8192, -8192, -8192, None), 12 * 16 * 8 * 2 * 128 * 2)
    with pytest.raises(InvalidInput, match="attention_chunk_size of 8000 tokens"):
        pool(model_of({**LLAMA_4, "attention_chunk_size": 8000}, "a-model"), 1, 128)


@pytest.mark.parametrize("name", OTHER_MEMORY)
def test_known_architectures_are_refused_with_what_their_layers_have(name: str) -> None:
    reason = f"'{name}', which is not supported: its layers have {OTHER_MEMORY[name]}; supported"
    with pytest.raises(InvalidInput, match=reason):
        of(model_type=name)


def test_unknown_architectures_list_the_supported_ones() -> None:
    with pytest.raises(InvalidInput) as caught:
        of(model_type="mamba")
    assert all(name in str(caught.value) for name in ARCHITECTURES)


def test_a_step_of_one_token_reads_all_experts_of_a_model_that_routes_to_all() -> None:
    llm = of(model_type="mixtral", num_local_experts=2, num_experts_per_tok=2)
    assert llm.experts_read(1) == 1.0
