"""Sizes of models as vLLM computes them, for a shrunken model of each listed architecture.

A model is built from its config alone, on torch's device "meta", which has shapes and types but no
memory; so weights in FP8 and MXFP4, whose kernels need a GPU, are covered too. Weights must have
the same bytes, and each layer's KV the same size and window.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.vllm import get_layers_from_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear.nvfp4.marlin import MarlinNvFp4LinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.registry import ModelRegistry
from vllm.model_executor.models.utils import extract_layer_index
from vllm.platforms import current_platform
from vllm.v1.attention.backends.mla import flashmla_sparse
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.core.single_type_kv_cache_manager import (
    FullAttentionManager,
    SlidingWindowManager,
    register_all_kvcache_specs,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
)
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

try:  # since 0.33
    from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs
except ImportError:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

    get_global_kv_cache_groups = None

from servers.profiles import MODELS, Model
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.profiles.kv_groups import block_tokens_of, groups_of
from servers.profiles.kv_groups import pool as pool_of
from servers.profiles.kv_memory import FULL_ATTENTION, STATE, STATE_INSIDE
from servers.profiles.models.config import model_of
from servers.vllm.models.model_folder import text_config

BLOCK_TOKENS = 32
MEMORY = 100_000_000
SMALL = {
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "global_head_dim": 128,
    "num_global_key_value_heads": 1,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 64,
    "vocab_size": 1024,
    "q_lora_rank": 128,
    "num_experts": 16,
    "n_routed_experts": 16,
    "num_local_experts": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
"""Even multiples of the blocks of FP8 scales, as in the published models."""
DENSE = {
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
DELTA = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
VISION = {
    "depth": 2,
    "hidden_size": 128,
    "num_heads": 4,
    "intermediate_size": 256,
    "out_hidden_size": 256,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 64,
}
EXPERTS = {
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 192,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
FOUR_BITS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
UNLISTED: Mapping[str, Mapping[str, Any]] = {
    "mistral-v0.1": {
        **DENSE,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 1024,
    },
    "mixtral": {
        **DENSE,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "minimax-m2": {
        **DENSE,
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "head_dim": 64,
        "rotary_dim": 32,
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "use_routing_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6},
    },
    "qwen3-next": {
        **DENSE,
        **DELTA,
        **EXPERTS,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
    },
    "qwen3.5": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            **DENSE,
            **DELTA,
            "model_type": "qwen3_5_text",
            "mamba_ssm_dtype": "float32",
        },
        "vision_config": {**VISION, "model_type": "qwen3_5_vision"},
    },
    "qwen3-mixed": {
        **DENSE,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 64,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                **{
                    f"model.layers.{layer}.self_attn.{name}": {"quant_algo": "FP8"}
                    for layer in range(6)
                    for name in ("q_proj", "k_proj", "v_proj", "o_proj")
                },
                **{
                    f"model.layers.{layer}.mlp.{name}": {
                        "quant_algo": "W4A16_NVFP4",
                        "group_size": 16,
                    }
                    for layer in range(1, 6)
                    for name in ("gate_proj", "up_proj", "down_proj")
                },
            },
        },
    },
    "minimax-m3": {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "projector_hidden_size": 192,
        "multimodal_projector_bias": True,
        "text_config": {
            **DENSE,
            "intermediate_size": 128,
            "dense_intermediate_size": 512,
            "head_dim": 128,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "moe_layer_freq": [0, 0, 1, 1, 1, 1],
            "sparse_attention_config": {
                "sparse_attention_freq": [0, 0, 1, 1, 1, 1],
                "sparse_index_dim": 128,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 4,
                "sparse_block_size": 128,
            },
            "n_shared_experts": 1,
            "use_routing_bias": True,
        },
        "vision_config": {
            "hidden_size": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 256,
            "patch_size": 14,
            "num_channels": 3,
            "image_size": 56,
            "layer_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "gelu",
            "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
        },
    },
    "qwen3-vl": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {**DENSE, "model_type": "qwen3_vl_text", "head_dim": 64},
        "vision_config": {
            **VISION,
            "model_type": "qwen3_vl",
            "deepstack_visual_indexes": [0, 1],
        },
    },
    "qwen3-vl-moe": {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "text_config": {
            **DENSE,
            "model_type": "qwen3_vl_moe_text",
            "head_dim": 64,
            "norm_topk_prob": True,
            "moe_intermediate_size": 128,
            "num_experts": 8,
            "num_experts_per_tok": 2,
        },
        "vision_config": {
            **VISION,
            "model_type": "qwen3_vl_moe",
            "deepstack_visual_indexes": [1],
        },
    },
    "qwen3.5-moe": {
        **DENSE,
        **DELTA,
        **EXPERTS,
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "mamba_ssm_dtype": "float32",
    },
    "nemotron-h": {
        **DENSE,
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "num_hidden_layers": 7,
        "hybrid_override_pattern": "M-M*-MM",
        "mamba_num_heads": 8,
        "mamba_head_dim": 32,
        "ssm_state_size": 64,
        "n_groups": 2,
        "conv_kernel": 4,
        "chunk_size": 128,
        "head_dim": 64,
    },
    "kimi-linear": {
        **DENSE,
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "q_lora_rank": None,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "mla_use_nope": True,
        "linear_attn_config": {
            "kda_layers": [1, 2, 3, 5],
            "full_attn_layers": [4],
            "num_heads": 4,
            "head_dim": 64,
            "short_conv_kernel_size": 4,
        },
        "num_experts": 8,
        "moe_intermediate_size": 128,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "glm-4.7-flash": {
        **DENSE,
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "num_key_value_heads": 8,
        "q_lora_rank": 128,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "n_routed_experts": 8,
        "moe_intermediate_size": 128,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "granite-4": {
        **DENSE,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "intermediate_size": 128,
        "shared_intermediate_size": 192,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "mamba_n_heads": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 64,
        "mamba_d_head": 32,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "position_embedding_type": "nope",
        "tie_word_embeddings": True,
    },
    "llama-4": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": {
            **DENSE,
            "model_type": "llama4_text",
            "head_dim": 64,
            "num_hidden_layers": 8,
            "intermediate_size": 128,
            "intermediate_size_mlp": 512,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 1024,
            "use_qk_norm": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
        "vision_config": {
            "model_type": "llama4_vision_model",
            "hidden_size": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 512,
            "image_size": 56,
            "patch_size": 14,
            "pixel_shuffle_ratio": 0.5,
            "projector_input_dim": 96,
            "projector_output_dim": 160,
            "vision_output_dim": 160,
        },
    },
    "qwen2": {
        **DENSE,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "tie_word_embeddings": True,
    },
    "llama-int4": {
        **DENSE,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {**FOUR_BITS, "symmetric": True}}
            },
        },
    },
}
"""Architectures and formats that no listed model has."""


def small(config: Mapping[str, Any]) -> dict[str, Any]:
    text = text_config(config)
    shrunken = {**text, **{key: value for key, value in SMALL.items() if key in text}}
    if "kv_lora_rank" in text:
        shrunken["num_key_value_heads"] = SMALL["num_attention_heads"]
    for name, value in text.items():
        if isinstance(value, list) and len(value) == text["num_hidden_layers"]:
            shrunken[name] = value[: SMALL["num_hidden_layers"]]
    return shrunken


IN_16_BITS = ("kimi-k2.5", "kimi-k2.7-code-nvfp4")
"""Models whose experts have 4 bits, for which vLLM has no kernels without a GPU."""
SHRUNKEN = {
    **{name: small(llm.config) for name, llm in MODELS.items() if llm.states is None},
    **{name: {**small(MODELS[name].config), "quantization_config": None} for name in IN_16_BITS},
    **{name: dict(config) for name, config in UNLISTED.items()},
}


def vllm_config(
    config: Mapping[str, Any], folder: Path, kv_cache_dtype: str = "auto"
) -> VllmConfig:
    (folder / "config.json").write_text(json.dumps(config))
    architecture = config["architectures"][0]
    # Otherwise vLLM starts a process for each architecture, which takes seconds.
    ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())
    arguments = EngineArgs(
        model=str(folder),
        load_format="dummy",
        dtype="bfloat16",
        block_size=BLOCK_TOKENS,
        max_model_len=2048,
        enforce_eager=True,
        skip_tokenizer_init=True,
        kv_cache_dtype=kv_cache_dtype,
    )
    made = arguments.create_engine_config()
    made.cache_config.kv_cache_layout = "LBNHC"  # the engine does this when it starts
    return made


@pytest.fixture(autouse=True)
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's module of Qwen3.5 imports torchvision, which its environment for CPUs lacks."""
    if find_spec("torchvision") is not None:
        return
    for part in ("", ".transforms", ".transforms.v2", ".transforms.v2.functional"):
        stub = MagicMock(__spec__=ModuleSpec("torchvision" + part, None), __path__=[])
        monkeypatch.setitem(sys.modules, "torchvision" + part, stub)


@pytest.fixture(scope="module", autouse=True)
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create vLLM's process groups with this process alone. A model with experts needs all."""
    folder = tmp_path_factory.mktemp("group")
    with set_current_vllm_config(vllm_config(SHRUNKEN["mixtral"], folder)):
        init_distributed_environment(1, 0, f"file://{folder / 'rendezvous'}", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    yield
    destroy_model_parallel()
    destroy_distributed_environment()


@pytest.fixture(autouse=True)
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM refuses sparse attention on CPUs, and 0.33 also MLA with KV in FP8, although no kernel
    runs here."""
    select = current_platform.get_attn_backend_cls

    def selected(
        selected_backend: object,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        if attn_selector_config.use_sparse:
            return AttentionBackendEnum.FLASHMLA_SPARSE.get_path()
        if attn_selector_config.use_mla:
            attn_selector_config = attn_selector_config._replace(kv_cache_dtype="auto")
        return select(selected_backend, attn_selector_config, num_heads)

    monkeypatch.setattr(current_platform, "get_attn_backend_cls", selected)
    monkeypatch.setattr(flashmla_sparse, "current_workspace_manager", MagicMock())


def built(config: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    # vLLM refuses formats and activations on such processors, although nothing is computed here.
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    kernels = {current_platform._enum: [MarlinNvFp4LinearKernel]}
    monkeypatch.setattr(linear, "_POSSIBLE_NVFP4_KERNELS", kernels)
    if config.model_config.architecture == "KimiLinearForCausalLM":  # written for GPUs
        monkeypatch.setenv("VLLM_KIMI_K3_GEMM_AR", "0")
        for name in ("Stream", "Event"):
            monkeypatch.setattr(torch.cuda, name, MagicMock())
        prefill = "vllm.models.kimi_k3.nvidia.mla.get_mla_prefill_backend"
        monkeypatch.setattr(prefill, MagicMock())
    for kernel in (CPUFp8BlockScaledMMKernel, MarlinNvFp4LinearKernel):
        monkeypatch.setattr(kernel, "is_supported", lambda *_, **__: (True, None))
    monkeypatch.setattr(CPUUnquantizedExperts, "_supports_activation", lambda _: True)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            return initialize_model(vllm_config=config, prefix="")
    finally:
        torch.set_default_dtype(default)


def weight_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of all parameters but single scales, of which a matrix or a layer's KV has
    one to three."""
    parameters = {id(each): each for each in module.parameters()}.values()
    counted = (each for each in parameters if each.dim() > 1 or each.numel() > 3)
    return sum(each.numel() * each.element_size() for each in counted)


def layers(llm: Model) -> Counter[tuple[int | None, int]]:
    """Return the number of layers by window and KV bytes per token."""
    found: Counter[tuple[int | None, int]] = Counter()
    for kind in llm.kinds:
        found[kind.window, kind.bytes_per_token() // kind.layers] += kind.layers
    return found


def kv_specs(config: VllmConfig) -> dict[str, KVCacheSpec]:
    """Return the KV of each layer of the model that was built last."""
    return {
        layer: spec
        for layer, each in get_layers_from_vllm_config(config, AttentionLayerBase).items()
        if (spec := each.get_kv_cache_spec(config)) is not None
    }


def planned(config: VllmConfig, specs: dict[str, KVCacheSpec]) -> KVCacheConfig:
    """Return the groups and the pool that vLLM plans for one worker."""
    known: tuple[Any, ...] = (config, [specs], [MEMORY])
    if get_global_kv_cache_groups is not None:
        known += (get_global_kv_cache_groups(config, [specs]),)
    [pool] = get_kv_cache_configs(*known)
    return pool


def window_of(spec: KVCacheSpec) -> int | None:
    """Return the group of a layer, as `servers.profiles.kv_memory` writes it."""
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return -spec.attention_chunk_size
    return getattr(spec, "sliding_window", None)


def layers_of_vllm(specs: Mapping[str, KVCacheSpec]) -> Counter[tuple[int | None, int]]:
    """Return the number of layers by window and KV bytes per token, with the keys of an indexer."""
    found: dict[int, tuple[int | None, int]] = {}
    for name, spec in specs.items():
        if not isinstance(spec, MambaSpec):
            layer = extract_layer_index(name)
            size = spec.page_size_bytes // spec.block_size + found.get(layer, (None, 0))[1]
            window = window_of(spec)
            found[layer] = (window and abs(window), size)
    return Counter(found.values())


def assert_states(
    llm: Model, config: VllmConfig, specs: Mapping[str, KVCacheSpec], pool: KVCacheConfig
) -> None:
    """Check the states, and the blocks and groups that follow from their sizes."""
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    assert llm.states is not None
    assert {spec.state_content_size_bytes for spec in states} == {llm.states.bytes_on(1)}
    assert {spec.num_prefill_checkpoint_blocks for spec in states} == {int(llm.states.inside)}
    block = block_tokens_of(llm, 1, BLOCK_TOKENS)
    assert config.cache_config.block_size == block
    groups, block_bytes, _ = pool_of(llm, 1, block)
    state = STATE_INSIDE if llm.states.inside else STATE
    theirs = [
        state if isinstance(group.kv_cache_spec, MambaSpec) else None
        for group in pool.kv_cache_groups
    ]
    assert list(groups) == theirs
    assert pool.num_blocks == MEMORY // block_bytes
    assert {group.kv_cache_spec.block_size for group in pool.kv_cache_groups} == {block}
    assert config.cache_config.mamba_cache_mode == "align"


@pytest.mark.parametrize("name", SHRUNKEN)
def test_weights_and_kv_are_those_of_vllm(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = model_of(SHRUNKEN[name], name)
    if llm.states is not None:
        # Without AMX, vLLM caches no prefixes of models with latent attention on a CPU.
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    config = vllm_config(SHRUNKEN[name], tmp_path)
    with set_current_vllm_config(config):
        module = built(config, monkeypatch)
        if llm.states is not None:
            current_platform.update_block_size_for_backend(config)
        specs = kv_specs(config)
        pool = planned(config, specs)
    if llm.states is not None:
        assert_states(llm, config, specs, pool)
    assert weight_bytes(module) == llm.weight_bytes
    assert layers(llm) == layers_of_vllm(specs)
    if llm.states is None:
        # vLLM's multi-head latent attention on a CPU without AMX has blocks of 16 tokens.
        groups, block_bytes, lengths = pool_of(llm, 1, config.cache_config.block_size)
        assert pool.num_blocks == MEMORY // block_bytes
    if len(pool.kv_cache_groups) > 1 and llm.states is None:
        theirs = [
            (window_of(spec), spec.block_size)
            for spec in (group.kv_cache_spec for group in pool.kv_cache_groups)
        ]
        full, local = (length * BLOCK_TOKENS for length in lengths)
        assert theirs == [(window, full if window is None else local) for window in groups]
    if groups_of(llm)[0] == FULL_ATTENTION:
        register_all_kvcache_specs(config)
        [group] = generate_scheduler_kv_cache_config([pool]).kv_cache_groups
        manager = KVCacheSpecRegistry.get_manager_class(group.kv_cache_spec)
        assert manager is (SlidingWindowManager if llm.kinds[0].window else FullAttentionManager)
    for gpus in (1, 2, 4, 8):
        heads = config.model_config.get_num_kv_heads(SimpleNamespace(tensor_parallel_size=gpus))
        kind = llm.kinds[0]
        sizes = heads * kind.entries * kind.entry_bytes + kind.other_bytes
        assert kind.bytes_per_token(gpus) == gpus * kind.layers * sizes


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "deepseek-v3"])
def test_kv_in_fp8_has_the_bytes_of_vllm(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = vllm_config(SHRUNKEN[name], tmp_path, "fp8")
    llm = with_kv_cache(model_of(SHRUNKEN[name], name), KvCacheDtype.FP8)
    with set_current_vllm_config(config):
        built(config, monkeypatch)
        assert layers(llm) == layers_of_vllm(kv_specs(config))
