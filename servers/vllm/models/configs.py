"""config.json of the models of `servers.profiles`, so that `--load-format dummy` needs no download.

The values define a model's shape and attention and are those of its published config.json, with two
differences. Gemma 3 is the text model only, because the image processor of its vision tower (0.42e9
of 12.19e9 parameters) would have to be downloaded. GLM-4.5 has no multi-token-prediction layer, as
in its profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servers.profiles import MODELS, Model
from servers.vllm.models.tiny_model import TINY_CONFIG


def _shape(llm: Model) -> dict[str, Any]:
    return {
        "num_hidden_layers": llm.layers,
        "hidden_size": llm.hidden,
        "num_attention_heads": llm.heads,
        "num_key_value_heads": llm.kv_heads,
        "head_dim": llm.head_dim,
        "vocab_size": llm.vocab,
        "max_position_embeddings": llm.max_model_len,
        "torch_dtype": "bfloat16",
    }


def _llama_31(llm: Model, intermediate: int) -> dict[str, Any]:
    return _shape(llm) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": intermediate,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
        "bos_token_id": 128_000,
        "eos_token_id": [128_001, 128_008, 128_009],
    }


def _gemma_3(llm: Model) -> dict[str, Any]:
    return _shape(llm) | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "intermediate_size": 15_360,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": llm.window,
        "layer_types": [
            "full_attention" if layer % 6 == 5 else "sliding_attention"
            for layer in range(llm.layers)
        ],
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": [1, 106],
    }


def _glm_45_fp8(llm: Model) -> dict[str, Any]:
    eight_bits = {"num_bits": 8, "type": "float", "symmetric": True}
    return _shape(llm) | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "eos_token_id": [151_329, 151_336, 151_338],
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "ignore": ["lm_head", "re:.*mlp.gate$"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**eight_bits, "strategy": "channel", "dynamic": False},
                    "input_activations": {**eight_bits, "strategy": "token", "dynamic": True},
                }
            },
        },
    }


CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "tiny": TINY_CONFIG,
    "llama-3.1-8b": _llama_31(MODELS["llama-3.1-8b"], 14_336),
    "llama-3.1-70b": _llama_31(MODELS["llama-3.1-70b"], 28_672),
    "gemma-3-12b": _gemma_3(MODELS["gemma-3-12b"]),
    "glm-4.5-fp8": _glm_45_fp8(MODELS["glm-4.5-fp8"]),
}
