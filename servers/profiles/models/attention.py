"""Computes the weights and the KV of attention, in layers with and without a window."""

from __future__ import annotations

from typing import NamedTuple

from servers.profiles.models.architectures import Architecture
from servers.profiles.models.fields import Fields
from servers.profiles.models.layer import Layer, Matrix


class Attention(NamedTuple):
    layer: Layer
    """Attention's part of a layer."""
    kv_heads: int
    entries: int
    pair_dims: int
    """The last three as in `LayerKind`."""


def attentions(fields: Fields, traits: Architecture, heads: int) -> tuple[Attention, Attention]:
    """Return attention of layers without and with a window."""
    if traits.latent:
        latent = _latent(fields, heads)
        return latent, latent
    elsewhere = dict(traits.elsewhere)
    if elsewhere and not fields.flag("attention_k_eq_v"):
        del elsewhere["num_key_value_heads"]  # as transformers does for Gemma 4
    full = _attention(fields.renamed(elsewhere), traits, sinks=not traits.in_windows)
    return full, _attention(fields.renamed(traits.in_windows), traits, sinks=True)


def _attention(fields: Fields, traits: Architecture, *, sinks: bool) -> Attention:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.problem(
            "num_key_value_heads",
            kv_heads,
            f"must divide the {heads} {fields.written_as('num_attention_heads')}",
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
    return Attention(Layer(matrices, others), kv_heads, both, heads * both)


def _latent(fields: Fields, heads: int) -> Attention:
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
    return Attention(Layer(matrices, others), 1, latent + rotary, pair_dims)
