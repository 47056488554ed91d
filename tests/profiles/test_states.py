"""Layers that keep a state: sizes, blocks, groups and step times, from a config.json.

`tests/real/plugin/test_models.py` compares them with vLLM's own objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from servers.basics.errors import CannotShare, InvalidInput
from servers.profiles import MODELS, analytic_profile, model
from servers.profiles.files import notes_for, profile_for
from servers.profiles.kv_groups import block_tokens_of, groups_of
from servers.profiles.kv_memory import STATE, STATE_INSIDE
from servers.profiles.models.config import model_of

QWEN3_NEXT: Mapping[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262_144,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}
"""The sizes that transformers 5.19 describes as those of Qwen3-Next-80B-A3B; the length is ours."""
NEMOTRON: Mapping[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "hybrid_override_pattern": "MEM*M-M",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 32,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 128,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
}
QWEN3_5 = {"model_type": "qwen3_5_text"}
QWEN3_5_MOE = {"model_type": "qwen3_5_moe_text"}
"""Architectures for which the fields of `QWEN3_NEXT` suffice too."""
GRANITE: Mapping[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "shared_intermediate_size": 48,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}
MIB = 1 << 20


def folder(tmp_path: Path, config: Mapping[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def test_a_gated_delta_net_keeps_three_tokens_of_its_convolution_and_a_matrix_per_head() -> None:
    llm = model_of(QWEN3_NEXT, "next")
    assert llm.states is not None
    # 2 × 16 × 128 + 32 × 128 channels of 3 tokens, and 32 matrices of 128 × 128, of 2 bytes.
    assert llm.states.bytes_on(1) == 8192 * 3 * 2 + 32 * 128 * 128 * 2
    assert llm.state_bytes_on(1) == 36 * 1_097_728
    assert llm.kv_bytes_per_token == 12 * 2 * 2 * 256 * 2
    assert llm.layers == 48
    assert round(llm.params / 1e9, 1) == 79.7


@pytest.mark.parametrize(("gpus", "block"), [(1, 544), (2, 544), (4, 272), (8, 144)])
def test_a_block_is_long_enough_that_its_page_holds_a_state(gpus: int, block: int) -> None:
    # A layer's token takes 2,048 bytes, so that 1,097,728 bytes need 536 tokens: 34 × 16. Four GPUs
    # have two copies of each KV head, and eight have four.
    assert block_tokens_of(model_of(QWEN3_NEXT, "next"), gpus, 16) == block


def test_states_have_as_many_groups_as_they_have_times_the_layers_with_attention() -> None:
    assert groups_of(model_of(QWEN3_NEXT, "next")) == ((STATE, STATE, STATE, None), 12)
    assert groups_of(model_of(NEMOTRON, "nemotron")) == ((*(4 * (STATE_INSIDE,)), None), 1)


def test_the_layers_of_nemotron_h_are_one_of_four_kinds() -> None:
    llm = model_of(NEMOTRON, "nemotron")
    assert llm.layers == 7
    assert llm.experts == 4
    # Keys and values of 2 heads of 16 dimensions in one layer.
    assert llm.kv_bytes_per_token == 2 * 2 * 16 * 2
    # 8 × 16 + 2 × 2 × 32 channels of 3 tokens of 2 bytes, and 8 matrices of 16 × 32 of 4 bytes.
    assert llm.state_bytes_on(1) == 4 * (256 * 3 * 2 + 8 * 16 * 32 * 4)
    mamba = 64 * (128 + 256 + 8) + 128 * 64 + 256 * 4 + 256 + 128 + 3 * 8
    attention = 64 * 64 * 2 + 2 * 64 * 32
    experts = 4 * 2 * 64 * 32 + 2 * 64 * 48 + 4 * 64 + 4
    mlp = 2 * 64 * 128
    assert llm.params == 4 * mamba + attention + experts + mlp + 8 * 64 + 2 * 1000 * 64


@pytest.mark.parametrize(
    ("config", "kept", "params"),
    [
        # The one layer with attention, number 3: queries and output, keys and values.
        (NEMOTRON, [f"backbone.layers.3.mixer.{each}_proj" for each in "qkvo"], 12_288),
        (NEMOTRON, ["backbone.layers.*.mixer.in_proj"], 4 * 64 * (128 + 256 + 8)),
        (NEMOTRON, ["backbone.layers.1.mixer.experts"], 4 * 2 * 64 * 32),
        (GRANITE, ["model.layers.0.block_sparse_moe"], 4 * 3 * 64 * 32),
        (GRANITE, ["re:.*shared_mlp.input_linear"], 3 * 2 * 64 * 48),
        (GRANITE, ["model.layers.2.shared_mlp.output_linear"], 64 * 48),
    ],
)
def test_listed_modules_keep_16_bits(
    config: Mapping[str, Any], kept: list[str], params: int
) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    all_bytes, bytes_with_kept = (
        model_of(
            {**config, "quantization_config": {**section, "ignore": ignored}}, "a"
        ).weight_bytes
        for ignored in ([], kept)
    )
    assert bytes_with_kept - all_bytes == params


def test_granite_without_a_shared_mlp_has_only_experts() -> None:
    both, experts = (
        model_of({**GRANITE, "shared_intermediate_size": size}, "granite") for size in (48, 0)
    )
    assert both.params - experts.params == 3 * 3 * 64 * 48


def test_more_gpus_than_groups_of_heads_keep_copies_of_their_inputs() -> None:
    states = model_of({**NEMOTRON, "n_groups": 1}, "nemotron").states
    assert states is not None
    assert states.bytes_on(4) - states.bytes_on(2) == 2 * 2 * 32 * 3 * 2


@pytest.mark.parametrize(
    ("groups", "possible"), [(1, [1, 2, 4, 8]), (2, [1, 2]), (8, [1, 2, 4, 8])]
)
def test_gpus_divide_groups_or_copy_a_single_one(groups: int, possible: list[int]) -> None:
    states = model_of({**NEMOTRON, "n_groups": groups}, "nemotron").states
    assert states is not None
    assert [gpus for gpus in (1, 2, 4, 8) if states.divides(gpus)] == possible


@pytest.mark.parametrize(
    ("config", "gpus", "counts"),
    [
        ({**NEMOTRON, "n_groups": 2}, 4, "8 state heads and 2 groups of them"),
        ({**QWEN3_NEXT, "linear_num_key_heads": 2}, 4, "32 state heads and 2 key heads"),
        (NEMOTRON, 8, "8 state heads and 2 groups of them"),
    ],
)
def test_gpus_that_cannot_share_states_are_refused_with_their_heads(
    config: Mapping[str, Any], gpus: int, counts: str, tmp_path: Path
) -> None:
    with pytest.raises(CannotShare, match=f"has {counts}, which {gpus} GPUs cannot share; use 1"):
        analytic_profile("h200", folder(tmp_path, config), gpus=gpus)


def test_two_gpus_have_room_for_more_states_than_one() -> None:
    name = "nemotron-3-nano-30b-a3b"
    llm, profile = MODELS[name], analytic_profile("b200", name, gpus=2)
    assert llm.state_bytes_on(2) == llm.state_bytes_on(1)  # 8 groups
    assert profile.block_tokens == block_tokens_of(llm, 2, 16)
    assert profile.kv_blocks > analytic_profile("b200", name, gpus=1).kv_blocks


def test_a_turn_in_a_step_reads_and_writes_its_states(tmp_path: Path) -> None:
    name = folder(tmp_path, QWEN3_NEXT)
    profile = analytic_profile("h200", name, gpus=2)
    assert profile.block_tokens == 544
    # 2 × 37.7 MiB over 2 × 4.8 TB/s × 0.75, and 14 µs of CPU time.
    states_ps = 2 * 37.69 * MIB / 7.2e12 * 1e12
    assert profile.sequence_ps == pytest.approx(states_ps + 14e6, rel=1e-3)
    # A turn of 262,144 tokens has 482 blocks of attention and two in each group of states.
    per_turn = 482 + 3 * 2
    assert profile.kv_tokens(2048, 262_144) == int(profile.kv_blocks / per_turn * 262_144)


def test_a_prompt_takes_at_least_65_ns_per_token_and_layer_with_a_delta_net(tmp_path: Path) -> None:
    # 36 layers on 2 GPUs or 8, and what they cannot share
    name, llm = folder(tmp_path, QWEN3_NEXT), model_of(QWEN3_NEXT, "next")
    for gpus in (2, 8):
        products_s = 2 * llm.token_params / (gpus * 989.5e12 * 0.3)
        reduced_s = 2 * 48 * 2048 * 2 * 2 * (gpus - 1) / gpus / (450e9 * 0.8)
        token_ps = analytic_profile("h200", name, gpus=gpus).token_ps
        assert token_ps == round((products_s + 36 * 65e-9 + reduced_s) * 1e12)


def state_bytes(config: Mapping[str, Any], **changes: Any) -> int:
    return model_of({**config, **changes}, "a").state_bytes_on(1)


def test_states_have_16_bits_but_in_the_architectures_for_which_vllm_reads_their_size() -> None:
    entries = 36 * 32 * 128 * 128
    for name, wide in (("qwen3_5_text", True), ("qwen3_5_moe_text", True), ("qwen3_next", False)):
        config = {**QWEN3_NEXT, "model_type": name}
        more = state_bytes(config, mamba_ssm_dtype="float32") - state_bytes(config)
        assert more == (2 * entries if wide else 0)
    assert state_bytes(GRANITE, mamba_ssm_cache_dtype="float32") == state_bytes(GRANITE)
    entries = 4 * 8 * 16 * 32
    narrow = state_bytes(NEMOTRON, mamba_ssm_cache_dtype="bfloat16")
    assert state_bytes(NEMOTRON) - narrow == 2 * entries


def test_heads_have_the_size_that_transformers_assumes() -> None:
    for config, size in ((QWEN3_NEXT, 256), (NEMOTRON, 128)):
        without = model_of({key: config[key] for key in config if key != "head_dim"}, "a")
        assert (
            without.kv_bytes_per_token
            == model_of({**config, "head_dim": size}, "a").kv_bytes_per_token
        )


def test_all_layers_of_qwen3_5_have_experts_or_none_has() -> None:
    config = {**QWEN3_NEXT, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    experts = 512 * 3 * 2048 * 512
    every = model_of({**config, **QWEN3_5_MOE}, "a")
    assert every.step_params - every.token_params - 151_936 * 2048 == 48 * experts * 502 // 512
    none = model_of({**config, **QWEN3_5}, "a")
    assert (none.experts, none.experts_per_token) == (0, 0)
    half = model_of(config, "a")
    assert half.step_params - half.token_params - 151_936 * 2048 == 23 * experts * 502 // 512


def test_a_layer_of_nemotron_h_has_one_all_reduce_and_others_have_two(tmp_path: Path) -> None:
    for config, reduces in ((NEMOTRON, 7), (QWEN3_NEXT, 2 * 48)):
        name = folder(tmp_path, config)
        one, two = (analytic_profile("b300", name, gpus=gpus) for gpus in (1, 2))
        assert two.base_ps - one.base_ps == reduces * 10_000_000


def test_granite_without_states_has_the_kv_of_full_attention(tmp_path: Path) -> None:
    config = {**GRANITE, "layer_types": ["attention"] * 3}
    llm = model_of(config, "granite")
    assert llm.states is None
    assert llm.kv_bytes_per_token == 3 * 2 * 2 * 16 * 2
    profile = analytic_profile("h200", folder(tmp_path, config))
    assert (profile.block_tokens, profile.kv_groups) == (16, (None,))


def test_notes_name_the_states_of_the_given_gpus_and_no_command_for_tables(tmp_path: Path) -> None:
    sizes = {"n_groups": 1, "mamba_num_heads": 4, "mamba_head_dim": 4, "ssm_state_size": 4096}
    llm = model(name := folder(tmp_path, {**NEMOTRON, **sizes}))
    for gpus in (1, 4):
        profile = profile_for("h100", name, gpus=gpus)
        shown = " ".join(notes_for("h100", name, profile, gpus=gpus))
        assert f"together {llm.state_bytes_on(gpus) / MIB:.1f} MiB per turn" in shown
        assert f"no operator tables cover {llm.name} on {gpus} x h100" in shown
        assert "--from aiconfigurator" not in shown
    # Three more copies of a group's 2 × 4096 inputs of 3 tokens, of 2 bytes, in 4 layers.
    assert llm.state_bytes_on(4) - llm.state_bytes_on(1) == 3 * 2 * 4096 * 3 * 2 * 4


@pytest.mark.parametrize("auto", [None, "auto"])
def test_granite_divides_twice_the_hidden_size_among_its_heads(auto: str | None) -> None:
    assert state_bytes(GRANITE, mamba_d_head=auto) == state_bytes(GRANITE, mamba_d_head=2 * 64 // 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_types": ["full_atention"] * 48},
            r"'full_atention': not supported; did you mean full_attention\?",
        ),
        ({"layer_types": ["chunked"] * 48}, "layer_types is 'chunked': not supported"),
        ({"layer_types": "linear"}, "layer_types is 'linear': must be a list"),
        ({"layer_types": ["linear_attention"] * 48}, "layer_types is .* gives no layer full atten"),
        ({"full_attention_interval": 1}, "full_attention_interval is 1: gives no layer a state"),
        ({"num_hidden_layers": 3}, "gives no layer full attention"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: .* from 1 to 1024"),
        ({"layer_types": ["mamba"] * 1025}, "layer_types is .*: must have at most 1024 layers"),
        ({"layer_types": ["full_attention", "mamba"]}, "num_hidden_layers is 48: .* 2 layers"),
        ({**QWEN3_5, "mamba_ssm_dtype": "fp8"}, "mamba_ssm_dtype is 'fp8': must be one of float32"),
        ({**QWEN3_5, "mamba_ssm_dtype": ["float32"]}, r"mamba_ssm_dtype is \['float32'\]: must be"),
        ({**QWEN3_5, "mamba_ssm_dtype": {}}, "mamba_ssm_dtype is {}: must be"),
        ({"num_experts": None}, "lacks num_experts"),
        ({**QWEN3_5_MOE, "num_experts": None}, "lacks num_experts"),
        ({**QWEN3_5_MOE, "num_experts": 0}, "num_experts is 0: must be a whole number from 1"),
        ({**NEMOTRON, "mamba_ssm_cache_dtype": 4}, "mamba_ssm_cache_dtype is 4: must be one of"),
        (
            {**NEMOTRON, "hybrid_override_pattern": "M*" * 513},
            "pattern is .*: must have at most 1024",
        ),
        (
            {**NEMOTRON, "num_hidden_layers": 2, "hybrid_override_pattern": "MM"},
            "hybrid_override_pattern is 'MM': gives no",
        ),
        ({**NEMOTRON, "sliding_window": 512}, "sliding_window is 512: must be null"),
        ({**NEMOTRON, "mamba_num_heads": None}, "lacks mamba_num_heads"),
        ({**GRANITE, "mamba_n_heads": 0}, "mamba_n_heads is 0: must be"),
        ({**GRANITE, "mamba_d_state": None}, "lacks mamba_d_state"),
        ({**GRANITE, "mamba_d_head": "16"}, "mamba_d_head is '16': must be a number"),
        ({"linear_num_value_heads": None}, "lacks linear_num_value_heads"),
    ],
)
def test_unusable_layers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        model_of({**QWEN3_NEXT, **changes}, "next")


def test_kimi_linear_keeps_states_in_32_bits_in_blocks_that_are_multiples_of_128_tokens() -> None:
    llm = MODELS["kimi-linear-48b-a3b"]
    # 3 × 32 × 128 channels of 3 tokens, and 32 matrices of 128 × 128.
    assert llm.state_bytes_on(1) == 20 * (3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4)
    # 512 latent and 64 further entries in 7 layers
    assert llm.kv_bytes_per_token == 7 * 576 * 2
    assert groups_of(llm) == ((STATE, STATE, STATE, None), 7)
    # 2,170,880 bytes are 14.7 times those of 128 tokens. Two GPUs have a copy of these each, and
    # half of the state: 7.4 times.
    assert [block_tokens_of(llm, gpus, 16) for gpus in (1, 2)] == [15 * 128, 8 * 128]
    assert llm.max_model_len == 1_048_576


def test_parameters_of_kimi_linear_add_up_from_its_layers() -> None:
    llm = MODELS["kimi-linear-48b-a3b"]
    small = 2 * (2304 * 128 + 128 * 4096)
    kda = 2304 * (3 * 4096 + 32) + small + 4096 * 2304 + 128 + 3 * 4096 * 4 + 4096 + 32
    latent = 2304 * (576 + 32 * 192) + 512 * 32 * 256 + 32 * 128 * 2304 + 512
    mixture = (256 + 1) * 3 * 2304 * 1024 + 256 * 2304 + 256
    layers = 20 * kda + 7 * latent + 3 * 2304 * 9216 + 26 * mixture + 2 * 27 * 2304
    assert llm.params == layers + 2304 + 2 * 163_840 * 2304


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"use_full_rank_gate": True}, "use_full_rank_gate is true: such layers, of Kimi K3"),
        ({"kda_layers": None}, "linear_attn_config is None: must list layers in kda_layers and"),
        ({"full_attn_layers": [4, 27]}, "must together have 1 to 27"),
        ({"num_heads": 0}, "num_heads is 0: must be a whole number from 1"),
    ],
)
def test_unusable_layers_of_kimi_linear_are_refused(section: dict[str, Any], message: str) -> None:
    config = MODELS["kimi-linear-48b-a3b"].config
    layers = {**config["linear_attn_config"], **section}
    with pytest.raises(InvalidInput, match=message):
        model_of({**config, "linear_attn_config": layers}, "kimi")


def test_more_attention_than_states_is_refused() -> None:
    kinds = ["linear_attention", *["full_attention"] * 3]
    config = {**QWEN3_NEXT, "num_hidden_layers": 4, "layer_types": kinds}
    with pytest.raises(InvalidInput, match=r"3 layers with attention .* 1 with a state"):
        groups_of(model_of(config, "next"))


@pytest.mark.parametrize("name", ["kimi_k3", "deepseek_v33", "qwen3_mixed", "qwen4_next"])
def test_no_architecture_with_other_memory_is_suggested(name: str) -> None:
    with pytest.raises(InvalidInput, match="not supported") as refused:
        model_of({**QWEN3_NEXT, "model_type": name}, "next")
    assert "did you mean" not in str(refused.value)
