"""Lists the architectures of text models, by `model_type`, and what their configs leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Architecture:
    """Properties of a `model_type` that its config does not state."""

    norms: int = 2
    """Normalisations of the hidden size per layer."""
    qk_norm: bool = False
    """Whether queries and keys are normalised per head."""
    qk_norm_of_layer: bool = False
    """Whether queries and keys are normalised over all heads of a layer."""
    qkv_bias: bool = False
    out_bias: bool = False
    """Attention biases, if the config has `attention_bias` or `fixed_bias` is set."""
    fixed_bias: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that published configs leave out because they equal the default."""
    windows: int = 0
    """If n > 0, every n-th layer attends to all tokens and the others to a window; `layer_types` in
    the config takes precedence."""
    chunks: bool = False
    """Whether these layers attend to the tokens in the same chunk instead of a window."""
    window_flags: str = ""
    """The field that lists 1 for each layer with a window, instead of `layer_types`."""
    in_windows: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Fields of the layers with a window and of the others, by the names of those that they
    replace."""
    window_switch: bool = False
    """Whether windows need `use_sliding_window`."""
    latent: bool = False
    """Whether attention is multi-head latent attention."""
    indexed: bool = False
    """Whether an indexer chooses the tokens that layers attend to."""
    wide_router: bool = False
    """Whether vLLM keeps the router in 32 bits."""
    states: bool = False
    """Whether some layers keep a state instead of KV."""
    gated: bool = False
    """Whether queries have a gate of the same size, unless `attn_output_gate` is false."""
    block: str = "mlp"
    """Name of the module of experts; other MLPs may be called `feed_forward` too."""
    shared_expert: bool = False
    """Whether each layer with experts has another one of their size for all tokens, without a
    gate."""
    beside_mlp: bool = False
    """Whether layers have their experts beside an MLP, with three more norms."""
    shared_mlp: bool = False
    """Whether each layer has an MLP of `shared_intermediate_size`, beside any experts."""
    mixers: bool = False
    """Whether a layer is one of attention, state, MLP and experts, and its MLPs have no gate."""
    experts: Literal["optional", "stated", "everywhere", "none"] = "optional"
    """Whether the config must state the number of experts; whether all layers or none have them
    whatever it says."""


_DEEPSEEK = Architecture(latent=True, fixed_bias=True)
_GEMMA = {"tie_word_embeddings": True, "head_dim": 256}
_GEMMA_3 = Architecture(
    norms=4,
    qk_norm=True,
    windows=6,
    defaults={
        **_GEMMA,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)
_DELTA = Architecture(
    qk_norm=True,
    qkv_bias=True,
    defaults={"head_dim": 256},
    states=True,
    gated=True,
    experts="stated",
)
_MIMO = Architecture(
    wide_router=True,
    experts="stated",
    window_flags="hybrid_layer_pattern",
    in_windows={
        name: f"swa_{name}"
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    },
    defaults={"topk_method": "noaux_tc"},
)
_MISTRAL = Architecture(fixed_bias=True, defaults={"sliding_window": 4096})
_MIXTRAL = Architecture(fixed_bias=True)
_QWEN_2 = Architecture(qkv_bias=True, fixed_bias=True, window_switch=True)
_QWEN_3 = Architecture(qk_norm=True, qkv_bias=True, window_switch=True)
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(qkv_bias=True, out_bias=True),
    "mistral": _MISTRAL,
    "ministral3": _MIXTRAL,
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN_2,
    "qwen2_moe": _QWEN_2,
    "qwen3": _QWEN_3,
    "qwen3_moe": _QWEN_3,
    "qwen3_vl_text": _QWEN_3,
    "qwen3_vl_moe_text": _QWEN_3,
    "qwen3_next": _DELTA,
    "qwen3_5_text": replace(_DELTA, experts="none"),
    "qwen3_5_moe_text": replace(_DELTA, experts="everywhere"),
    "nemotron_h": Architecture(norms=1, defaults={"head_dim": 128}, states=True, mixers=True),
    "kimi_linear": Architecture(latent=True, states=True, block="block_sparse_moe"),
    "granitemoehybrid": Architecture(
        qkv_bias=True, out_bias=True, states=True, shared_mlp=True, block="block_sparse_moe"
    ),
    "llama4_text": Architecture(
        fixed_bias=True,
        windows=4,
        chunks=True,
        window_flags="no_rope_layers",
        block="feed_forward",
        shared_expert=True,
        experts="stated",
        defaults={"attention_chunk_size": 8192, "interleave_moe_layer_step": 1},
    ),
    "phi3": Architecture(fixed_bias=True),
    "gemma2": Architecture(
        norms=4,
        windows=2,
        fixed_bias=True,
        defaults={
            **_GEMMA,
            "vocab_size": 256_000,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
        },
    ),
    "gemma3_text": _GEMMA_3,
    "gemma4_text": replace(
        _GEMMA_3,
        block="",
        beside_mlp=True,
        elsewhere={
            "head_dim": "global_head_dim",
            "num_key_value_heads": "num_global_key_value_heads",
        },
        defaults={
            **_GEMMA,
            "global_head_dim": 512,
            "vocab_size": 262_144,
            "max_position_embeddings": 131_072,
            "sliding_window": 512,
            "hidden_size_per_layer_input": 256,
        },
    ),
    "mimo_v2": _MIMO,
    "mimo_v2_flash": _MIMO,
    "gpt_oss": Architecture(
        qkv_bias=True,
        out_bias=True,
        windows=2,
        defaults={"attention_bias": True, "sliding_window": 128},
    ),
    "glm4_moe": Architecture(qkv_bias=True, wide_router=True),
    "glm4_moe_lite": Architecture(latent=True, wide_router=True),
    "minimax_m2": Architecture(qkv_bias=True, qk_norm_of_layer=True, wide_router=True),
    "minimax_m3_text": Architecture(
        qk_norm=True, wide_router=True, indexed=True, block="block_sparse_moe"
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v32": replace(_DEEPSEEK, indexed=True),
    "glm_moe_dsa": replace(_DEEPSEEK, indexed=True),
}
TEXT_PARTS = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "mistral3": "mistral",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Multimodal architectures, with the default architecture of their text part."""
_STATES = "states of"
_SHORT = f"{_STATES} short convolutions"
_COMPRESSED = "latent vectors of 4 or 128 tokens, and windows of several lengths to compute them"
_HEADS = "other numbers of heads with a window than without"
OTHER_MEMORY = {
    "kimi_k3": f"{_STATES} Kimi delta attention, which only some GPUs can save inside a prompt",
    "jamba": f"{_STATES} Mamba 1",
    "falcon_h1": f"{_STATES} Mamba 2 and attention at once",
    "zamba2": f"{_STATES} Mamba 2 beside attention whose weights they share",
    "lfm2": _SHORT,
    "lfm2_moe": _SHORT,
    "olmo_hybrid": f"{_STATES} a gated delta net with other projections than Qwen's",
    "bailing_hybrid": f"{_STATES} lightning attention",
    "glm5_next": f"{_STATES} Kimi delta attention, and pooled keys of an indexer",
    "glm5_next_text": f"{_STATES} Kimi delta attention, and pooled keys of an indexer",
    "qwen4_exp": f"{_STATES} several sizes, and compressed keys",
    "qwen4_exp_text": f"{_STATES} several sizes, and compressed keys",
    "step5": "compressed keys in a ring of constant size",
    "deepseek_v4": _COMPRESSED,
    "deepseek_v41": _COMPRESSED,
    "deepseek_ref": _COMPRESSED,
    "gemma3n": "KV that they share",
    "gemma3n_text": "KV that they share",
    "gemma4_e": "KV that they share, and embeddings of their own",
    "step3p5": _HEADS,
    "step3p7": _HEADS,
    "nemotron-nas": "MLPs of several sizes, and some of them no attention",
}
"""What known architectures keep that is not supported, by `model_type` or the start of a name."""


def keeps_states(config: Mapping[str, Any]) -> bool:
    """Return whether layers of the architecture, supported or not, keep a state instead of KV."""
    text = config.get("text_config")
    architecture = str((text if isinstance(text, Mapping) else config).get("model_type"))
    known = ARCHITECTURES.get(architecture)
    unsupported = OTHER_MEMORY.get(architecture, "").startswith(_STATES)
    return unsupported or (known is not None and known.states)
