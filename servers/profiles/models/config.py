"""Computes a `Model` from a config.json of Hugging Face's `transformers`.

In: the fields of the config. Out: sizes of weights and KV, as vLLM loads them: without layers for
multi-token prediction, and with 16 bits for parameters that are not quantised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from servers.basics.errors import InvalidInput
from servers.basics.nearest import nearest
from servers.profiles.models.fields import MOST_LAYERS, Fields
from servers.profiles.models.layer import Layer, Matrix
from servers.profiles.models.quantization import FULL, Quantization, quantization_of
from servers.profiles.models.shape import Indexer, LayerKind, Model, Use, Weights
from servers.profiles.models.sparse import flags, indexed_layers, indexer_of, scorer
from servers.profiles.models.states import Kind, Stateful, stateful
from servers.profiles.models.vision import vision_weights

KV_BYTES, KV_FP8_BYTES = 2, 1
SIZE_BYTES = 2
"""Bytes of a parameter that is not quantised."""
WIDE_BYTES = 4


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
    "step3p5": _HEADS,
    "step3p7": _HEADS,
    "nemotron-nas": "MLPs of several sizes, and some of them no attention",
}
"""What known architectures keep that is not supported."""


def keeps_states(config: Mapping[str, Any]) -> bool:
    """Return whether layers of the architecture, supported or not, keep a state instead of KV."""
    text = config.get("text_config")
    architecture = str((text if isinstance(text, Mapping) else config).get("model_type"))
    known = ARCHITECTURES.get(architecture)
    unsupported = OTHER_MEMORY.get(architecture, "").startswith(_STATES)
    return unsupported or (known is not None and known.states)


def model_of(
    config: Mapping[str, Any],
    name: str,
    *,
    gpus: int | None = None,
    source: str = "a config.json",
    where: str | None = None,
) -> Model:
    """Return the model that a config describes. `where` names the config in errors. Raises
    InvalidInput."""
    where = where or name
    fields, architecture = _text_part(config, where)
    traits = ARCHITECTURES[architecture]
    quantization = quantization_of(config, where)
    if quantization is FULL:
        quantization = quantization_of(fields.values, where)
    heads = fields.count("num_attention_heads")
    found = stateful(fields, architecture) if traits.states else None
    layers = len(found.kinds) if found else fields.count("num_hidden_layers", most=MOST_LAYERS)
    windows = _windows(fields, traits, layers)
    attention = _attentions(fields, traits, heads)
    indexed = indexed_layers(fields, traits.latent, layers) if traits.indexed else []
    indexer = indexer_of(fields, traits.latent, indexed) if indexed else None
    if indexer and traits.latent:  # Queries are multiplied with latent vectors, also in prompts.
        pair_dims = heads * (attention[0].entries + fields.count("kv_lora_rank"))
        attention = (attention[0]._replace(pair_dims=pair_dims),) * 2
    experts = _experts(fields, traits, found)
    parts = _parts(fields, traits, attention, windows, experts, found)
    if indexer is not None:
        parts.append((scorer(fields, indexer), indexed))
    per_token = fields.count(*EXPERTS_PER_TOKEN, least=1, most=experts) if experts else 0
    entry_bytes = KV_FP8_BYTES if quantization.fp8_kv else KV_BYTES
    return Model(
        name=name,
        architecture=architecture,
        hidden=fields.count("hidden_size"),
        heads=heads,
        vocab=fields.count("vocab_size"),
        kinds=tuple(
            replace(
                kind,
                kv_heads=attention[kind.window is not None].kv_heads,
                entries=attention[kind.window is not None].entries,
                pair_dims=attention[kind.window is not None].pair_dims,
                entry_bytes=entry_bytes,
            )
            for kind in _kept(fields, traits, windows, found, indexer)
        ),
        weights=_weights(fields, parts, quantization)
        + vision_weights(config, where, fields.count("hidden_size")),
        experts=experts,
        experts_per_token=per_token,
        matmul=quantization.matmul,
        precision=quantization.words,
        max_model_len=_max_model_len(fields),
        gpus=gpus,
        source=source,
        config=config,
        states=found and found.states,
        indexer=indexer,
        other_layers=_other_layers(found),
        reduces_per_layer=1 if traits.mixers else 2,
    )


def _other_layers(found: Stateful | None) -> int:
    return sum(kind in ("dense", "experts") for kind in found.kinds) if found else 0


def _experts(fields: Fields, traits: Architecture, found: Stateful | None) -> int:
    """Return the number of routed experts of a layer that has some, or 0."""
    if traits.experts == "none" or (traits.mixers and found and "experts" not in found.kinds):
        return 0
    if traits.experts == "everywhere" or traits.mixers:
        return fields.count(*EXPERTS)
    return fields.count(*EXPERTS, default=None if traits.experts == "stated" else 0, least=0)


EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
)


def _text_part(config: Mapping[str, Any], where: str) -> tuple[Fields, str]:
    top = Fields(config, where)
    architecture = top.get("model_type")
    if isinstance(architecture, str) and architecture in TEXT_PARTS:
        text = top.inner("text_config")
        if (tied := top.get("tie_word_embeddings")) is not None:
            text = {**text, "tie_word_embeddings": tied}  # as vLLM does
        architecture = text.get("model_type", TEXT_PARTS[architecture])
    else:
        text = config
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        known = (*ARCHITECTURES, *TEXT_PARTS)
        close = _meant(architecture, known) if isinstance(architecture, str) else ""
        hint = f"did you mean {close}? " if close else ""
        stated = "lacks model_type"
        if architecture is not None:
            stated = f"model_type is {str(architecture)[:40]!r}, which is not supported"
        if isinstance(architecture, str) and architecture in OTHER_MEMORY:
            stated += f": its layers have {OTHER_MEMORY[architecture]}"
        raise InvalidInput(f"{where}: {stated}; {hint}supported are {', '.join(known)}")
    return Fields(text, where, ARCHITECTURES[architecture].defaults), architecture


def _meant(architecture: str, known: Sequence[str]) -> str:
    """Return the supported architecture that a misspelt name means. Another number or another word
    is another architecture, whose layers may keep other KV."""
    close = nearest(architecture, known)
    parts, others = (re.findall("[a-z]+|[0-9]+", name.lower()) for name in (architecture, close))
    if len(parts) != len(others):
        return ""
    same = (
        part == other or (part.isalpha() and bool(nearest(part, [other])))
        for part, other in zip(parts, others, strict=True)
    )
    return close if all(same) else ""


class _Attention(NamedTuple):
    layer: Layer
    """Attention's part of a layer."""
    kv_heads: int
    entries: int
    pair_dims: int
    """The last three as in `LayerKind`."""


def _attentions(fields: Fields, traits: Architecture, heads: int) -> tuple[_Attention, _Attention]:
    """Return attention of layers without and with a window."""
    if traits.latent:
        latent = _latent(fields, heads)
        return latent, latent
    elsewhere = dict(traits.elsewhere)
    if elsewhere and not fields.flag("attention_k_eq_v"):
        del elsewhere["num_key_value_heads"]  # as transformers does for Gemma 4
    full = _attention(fields.renamed(elsewhere), traits, sinks=not traits.in_windows)
    return full, _attention(fields.renamed(traits.in_windows), traits, sinks=True)


def _attention(fields: Fields, traits: Architecture, *, sinks: bool) -> _Attention:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.problem(
            "num_key_value_heads", kv_heads, f"must divide the {heads} num_attention_heads"
        )
    size = fields.count("head_dim", default=max(1, hidden // heads))
    value_size = fields.count("v_head_dim", default=size)
    queries, keys, values = heads * size, kv_heads * size, kv_heads * value_size
    module = "mixer" if traits.mixers else "self_attn"
    gates = queries if traits.gated and fields.flag("attn_output_gate", default=True) else 0
    matrices = [
        Matrix(f"{module}.q_proj", hidden, queries + gates),
        Matrix(f"{module}.k_proj", hidden, keys),
        Matrix(f"{module}.v_proj", hidden, values),
        Matrix(f"{module}.o_proj", heads * value_size, hidden),
    ]
    biases = traits.fixed_bias or fields.flag("attention_bias")
    others = queries + gates + keys + values if biases and traits.qkv_bias else 0
    others += hidden if biases and traits.out_bias else 0
    if traits.qk_norm_of_layer:
        others += queries + keys
    elif traits.qk_norm or (fields.flag("use_qk_norm") and not traits.chunks):
        others += 2 * size
    if sinks and (
        fields.values.get("model_type") == "gpt_oss" or fields.flag("add_swa_attention_sink_bias")
    ):
        others += heads
    both = size + value_size
    return _Attention(Layer(matrices, others), kv_heads, both, heads * both)


def _latent(fields: Fields, heads: int) -> _Attention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1). The projections to
    the latent vectors are copied to every GPU."""
    hidden = fields.count("hidden_size")
    latent, rotary = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    rest, values = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    queries = heads * (rest + rotary)
    others = latent
    matrices = [
        Matrix("self_attn.kv_a_proj_with_mqa", hidden, latent + rotary, on_every_gpu=True),
        Matrix("self_attn.kv_b_proj", latent, heads * (rest + values)),
        Matrix("self_attn.o_proj", heads * values, hidden),
    ]
    if fields.get("q_lora_rank") is None:
        matrices.append(Matrix("self_attn.q_proj", hidden, queries))
    else:
        rank = fields.count("q_lora_rank")
        others += rank
        matrices.append(Matrix("self_attn.q_a_proj", hidden, rank, on_every_gpu=True))
        matrices.append(Matrix("self_attn.q_b_proj", rank, queries))
    pair_dims = heads * (rest + rotary + values)
    return _Attention(Layer(matrices, others), 1, latent + rotary, pair_dims)


def _dense(fields: Fields, traits: Architecture) -> Layer:
    hidden = fields.count("hidden_size")
    if traits.shared_mlp:
        inner = fields.count("shared_intermediate_size", least=0)
        joined = [
            Matrix("shared_mlp.input_linear", hidden, 2 * inner),
            Matrix("shared_mlp.output_linear", inner, hidden),
        ]
        return Layer(joined if inner else [], 0)
    inner = fields.count("dense_intermediate_size", "intermediate_size_mlp", "intermediate_size")
    if traits.mixers:
        biases = inner + hidden if fields.flag("mlp_bias") else 0
        return Layer(_plain("mixer", hidden, inner), biases)
    biases = 2 * inner + hidden if fields.flag("mlp_bias") else 0
    module = "feed_forward" if traits.block == "feed_forward" else "mlp"
    return Layer(_gated(module, hidden, inner), biases)


def _gated(module: str, hidden: int, inner: int, use: Use = "layers", n: int = 1) -> list[Matrix]:
    return [
        Matrix(f"{module}.gate_proj", hidden, inner, use, n),
        Matrix(f"{module}.up_proj", hidden, inner, use, n),
        Matrix(f"{module}.down_proj", inner, hidden, use, n),
    ]


def _plain(module: str, hidden: int, inner: int, use: Use = "layers", n: int = 1) -> list[Matrix]:
    return [
        Matrix(f"{module}.up_proj", hidden, inner, use, n),
        Matrix(f"{module}.down_proj", inner, hidden, use, n),
    ]


def _mixer_experts(fields: Fields, experts: int) -> Layer:
    """The experts of Nemotron-H, which may have fewer dimensions than the other layers."""
    hidden = fields.count("hidden_size")
    latent = fields.count("moe_latent_size", default=hidden)
    inner = fields.count("moe_intermediate_size")
    matrices = _plain("mixer.experts.0", latent, inner, "experts", experts)
    if latent != hidden:
        matrices.append(Matrix("mixer.fc1_latent_proj", hidden, latent, on_every_gpu=True))
        matrices.append(Matrix("mixer.fc2_latent_proj", latent, hidden, on_every_gpu=True))
    if shared := fields.count("n_shared_experts", default=0, least=0):
        size = shared * fields.count("moe_shared_expert_intermediate_size")
        matrices += _plain("mixer.shared_experts", hidden, size)
    return Layer(matrices, experts * hidden, wide=experts)


def _mixture(fields: Fields, traits: Architecture, experts: int) -> Layer:
    if traits.mixers:
        return _mixer_experts(fields, experts)
    hidden = fields.count("hidden_size")
    inner = fields.count("moe_intermediate_size", "intermediate_size")
    block = traits.block
    matrices = _gated(f"{block}.experts.0".lstrip("."), hidden, inner, "experts", experts)
    others, wide = experts * hidden, 0
    if traits.beside_mlp:  # norms, and scales of the router's inputs and of experts
        others += 3 * hidden + hidden + experts
    if _corrected(fields):
        wide = experts
    if traits.wide_router:
        others, wide = 0, wide + others
    shared = fields.count("n_shared_experts", "num_shared_experts", default=0, least=0) * inner
    module = "shared_experts"
    if not shared:
        module = "shared_expert"
        shared = fields.count("shared_expert_intermediate_size", default=0, least=0)
        others += hidden if shared else 0  # gate of the shared expert
        if traits.shared_expert:
            shared = inner
    if shared:
        matrices += _gated(f"{block}.{module}", hidden, shared)
    if traits.shared_mlp:
        matrices += _dense(fields, traits).matrices
    if fields.values.get("model_type") == "gpt_oss":
        return Layer(matrices, others + experts, experts * (2 * inner + hidden))
    return Layer(matrices, others, wide=wide)


def _corrected(fields: Fields) -> bool:
    """Return whether the router has a bias for each expert, which balances their load."""
    if "use_routing_bias" in fields.values:
        return fields.flag("use_routing_bias")
    if fields.values.get("model_type") in ("glm4_moe", "glm4_moe_lite", "kimi_linear"):
        return True
    return "n_routed_experts" in fields.values and fields.get("topk_method") == "noaux_tc"


def _mixture_layers(fields: Fields, traits: Architecture, layers: int, experts: int) -> list[bool]:
    """Return for each layer whether it has experts."""
    if not experts or traits.experts == "everywhere":
        return [bool(experts)] * layers
    if isinstance(fields.get("moe_layer_freq"), list):
        return flags(fields, "moe_layer_freq", layers)
    first = fields.count("first_k_dense_replace", default=0, least=0)
    every = fields.count(
        "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", default=1
    )
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise fields.problem("mlp_only_layers", dense, "must be a list of layers")
    # `decoder_sparse_step` counts from 1, `moe_layer_freq` from 0.
    offset = 1 if fields.get("moe_layer_freq") is None else 0
    return [
        layer >= first and (layer + offset) % every == 0 and layer not in dense
        for layer in range(layers)
    ]


def _weights(
    fields: Fields, parts: list[tuple[Layer, list[int]]], quantization: Quantization
) -> tuple[Weights, ...]:
    """Return the weights of the parts of layers, of the tables and of the last norm."""
    hidden, vocab = fields.count("hidden_size"), fields.count("vocab_size")
    totals: dict[tuple[Use, bool], list[int]] = {}

    def add(use: Use, params: int, size_bytes: int, on_every_gpu: bool = False) -> None:
        total = totals.setdefault((use, on_every_gpu), [0, 0])
        total[0] += params
        total[1] += size_bytes

    tied = fields.flag("tie_word_embeddings")
    mixed = quantization.modules is not None and not tied
    head = quantization.of("lm_head") if mixed else FULL
    add("head", vocab * hidden, head.matrix_bytes(hidden, vocab))
    if not tied:
        add("embedding", vocab * hidden, vocab * hidden * SIZE_BYTES)
    add("layers", hidden, hidden * SIZE_BYTES)  # the last norm
    for part, which in parts:
        add("layers", part.others * len(which), part.others * len(which) * SIZE_BYTES)
        add("layers", part.wide * len(which), part.wide * len(which) * WIDE_BYTES)
        biases = part.expert_biases * len(which)
        add("experts", biases, biases * SIZE_BYTES)
        for matrix in part.matrices:
            params = matrix.number * matrix.inputs * matrix.outputs
            size = matrix.number * _stored_bytes(matrix, which, quantization)
            add(matrix.use, params * len(which), size, matrix.on_every_gpu)
    return tuple(
        Weights(use, params, size, on_every_gpu)
        for (use, on_every_gpu), (params, size) in totals.items()
        if params
    )


def _parts(
    fields: Fields,
    traits: Architecture,
    attention: tuple[_Attention, _Attention],
    windows: list[int | None],
    experts: int,
    found: Stateful | None,
) -> list[tuple[Layer, list[int]]]:
    """Return the parts of layers, each with the layers that have it."""
    every = list(range(len(windows)))
    mixture = _mixture_layers(fields, traits, len(windows), experts)
    having: dict[Kind, list[int]] = {
        "attention": every,
        "dense": [layer for layer in every if traits.beside_mlp or not mixture[layer]],
        "experts": [layer for layer in every if mixture[layer]],
    }
    parts = [(Layer([], traits.norms * fields.count("hidden_size")), every)]
    if found is not None:
        for kind in (
            ("attention", "state", "dense", "experts") if traits.mixers else ("attention", "state")
        ):
            having[kind] = [layer for layer in every if found.kinds[layer] == kind]
        parts.append((found.layer, having["state"]))
    for local, one in enumerate(attention):
        which = [layer for layer in having["attention"] if (windows[layer] is not None) == local]
        parts += [(one.layer, which)] if which else []
    if having["dense"]:
        parts.append((_dense(fields, traits), having["dense"]))
    if having["experts"]:
        parts.append((_mixture(fields, traits, experts), having["experts"]))
    return parts


def _stored_bytes(matrix: Matrix, layers: list[int], quantization: Quantization) -> int:
    """Return the bytes of a matrix in all of these layers."""
    if matrix.full or (quantization.experts_only and matrix.use != "experts"):
        return len(layers) * matrix.inputs * matrix.outputs * SIZE_BYTES
    differing = layers if quantization.by_layer else layers[:1]
    formats = (quantization.of(f"model.layers.{layer}.{matrix.module}") for layer in differing)
    sizes = [each.matrix_bytes(matrix.inputs, matrix.outputs) for each in formats]
    return sum(sizes) if quantization.by_layer else sizes[0] * len(layers)


def _kept(
    fields: Fields,
    traits: Architecture,
    windows: list[int | None],
    found: Stateful | None,
    indexer: Indexer | None,
) -> list[LayerKind]:
    """Return the layers with KV by kind, without the sizes of their KV."""
    layers = len(windows)
    if indexer is not None:
        # Layers of latent attention without an indexer use what the last one before them chose.
        own = LayerKind(indexer.layers, None, 0, 0, 0, indexer.key_bytes, sparse=True)
        other = LayerKind(layers - indexer.layers, None, 0, 0, 0, sparse=traits.latent)
        return [kind for kind in (own, other) if kind.layers]
    if found is None:
        return [
            LayerKind(n, window, 0, 0, 0, chunked=traits.chunks and window is not None)
            for window, n in Counter(windows).items()
        ]
    if traits.mixers and (window := fields.get("sliding_window")) is not None:
        raise fields.problem(
            "sliding_window", window, "must be null; no windows are supported beside states"
        )
    return [LayerKind(found.kinds.count("attention"), None, 0, 0, 0)]


def _windows(fields: Fields, traits: Architecture, layers: int) -> list[int | None]:
    """Return the window of each layer; None for those that attend to all tokens."""
    for name, what in (
        ("num_kv_shared_layers", "layers that share KV"),
        ("hidden_size_per_layer_input", "embeddings per layer"),
    ):
        if count := fields.count(name, default=0, least=0):
            raise fields.problem(name, count, f"{what} are not supported; it must be 0")
    if traits.latent or traits.states:
        return [None] * layers
    if traits.window_switch and not fields.flag("use_sliding_window"):
        return [None] * layers
    size, pattern = "sliding_window", "sliding_window_pattern"
    if traits.chunks:
        size, pattern = "attention_chunk_size", "no_rope_layer_interval"
    unset = size in fields.values and fields.values[size] is None
    if unset or fields.get(size) is None:
        return [None] * layers
    window = fields.count(size, least=2 if traits.chunks else 1)
    kinds = fields.get("layer_types")
    if traits.window_flags and (not traits.chunks or fields.get(traits.window_flags)):
        local = flags(fields, traits.window_flags, layers)
    elif kinds is not None and not traits.chunks:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise fields.problem(
                "layer_types", kinds, f"must be a list of {layers} kinds of layers"
            )
        local = [kind == "sliding_attention" for kind in kinds]
    elif every := fields.count(pattern, default=traits.windows, least=0):
        local = [bool((layer + 1) % every) for layer in range(layers)]
    elif traits.window_switch:
        first = fields.count("max_window_layers", default=0, least=0)
        local = [layer >= first for layer in range(layers)]
    else:
        local = [True] * layers
    return [window if is_local else None for is_local in local]


def _max_model_len(fields: Fields) -> int:
    """Return the longest context. YaRN multiplies the length that the model was trained with."""
    has_other = fields.get("model_max_length") is not None
    longest = fields.count("model_max_length" if has_other else "max_position_embeddings")
    scaling = fields.inner("rope_scaling") or fields.inner("rope_parameters")
    kind = scaling.get("rope_type", scaling.get("type"))
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if kind != "yarn" or original is None:
        return longest
    trained = Fields(scaling, fields.where).count("original_max_position_embeddings")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1e6:
        raise fields.problem("rope_scaling.factor", factor, "must be a number from 1 to 1,000,000")
    return round(trained * factor)
