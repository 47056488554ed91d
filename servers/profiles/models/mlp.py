"""Computes the weights of MLPs and of mixtures of experts."""

from __future__ import annotations

from servers.profiles.models.architectures import Architecture
from servers.profiles.models.fields import Fields
from servers.profiles.models.layer import Layer, Matrix
from servers.profiles.models.shape import Use
from servers.profiles.models.sparse import flags
from servers.profiles.models.states import Stateful

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
)


def experts_of(fields: Fields, traits: Architecture, found: Stateful | None) -> int:
    """Return the number of routed experts of a layer that has some, or 0."""
    if traits.experts == "none" or (traits.mixers and found and "experts" not in found.kinds):
        return 0
    if traits.experts == "everywhere" or traits.mixers:
        return fields.count(*EXPERTS)
    return fields.count(*EXPERTS, default=None if traits.experts == "stated" else 0, least=0)


def dense(fields: Fields, traits: Architecture) -> Layer:
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


def mixture(fields: Fields, traits: Architecture, experts: int) -> Layer:
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
        matrices += dense(fields, traits).matrices
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


def mixture_layers(fields: Fields, traits: Architecture, layers: int, experts: int) -> list[bool]:
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
