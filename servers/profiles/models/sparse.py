"""Computes the indexers of a config with sparse attention: DeepSeek-V3.2 and GLM-5 beside latent
attention, and MiniMax-M3 beside ordinary keys and values. Sizes are as in vLLM 0.32.
"""

from __future__ import annotations

from servers.profiles.models.fields import Fields
from servers.profiles.models.layer import Layer, Matrix
from servers.profiles.models.shape import Indexer

FLOAT32_BYTES, SIXTEEN_BITS = 4, 2
LATENT_S = {"token_s": 0.45e-6, "decode_s": 0.22e-3, "prompt_s": 0.8e-3}
"""What layers of DeepSeek-V3.2 and GLM-5 take longer than their FLOPs and bytes, on H200 and B200
alike (`aiconfigurator-core` 0.12, vLLM 0.24): their many small kernels, and choosing the tokens."""


def indexer_of(fields: Fields, latent: bool, indexed: list[int]) -> Indexer:
    """Return the indexer of these layers, beside latent or ordinary attention."""
    if latent:
        size = fields.count("index_head_dim")
        return Indexer(
            layers=len(indexed),
            tokens=fields.count("index_topk"),
            heads=fields.count("index_n_heads"),
            size=size,
            key_bytes=size + size // 128 * FLOAT32_BYTES,  # with scales
            fp8=True,
            copied=True,
            block_tokens=64,
            **LATENT_S,
        )
    section = _sparse(fields)
    size, block_tokens = section.count("sparse_index_dim"), section.count("sparse_block_size")
    return Indexer(
        layers=len(indexed),
        tokens=section.count("sparse_topk_blocks") * block_tokens,
        heads=section.count("sparse_num_index_heads"),
        size=size,
        key_bytes=size * SIXTEEN_BITS,
        fp8=False,
        copied=False,
        block_tokens=block_tokens,
    )


def _sparse(fields: Fields) -> Fields:
    return Fields(fields.inner("sparse_attention_config"), fields.where)


def indexed_layers(fields: Fields, latent: bool, layers: int) -> list[int]:
    """Return the layers with an indexer, as vLLM 0.32 does."""
    if not latent:
        name = "sparse_attention_freq"
        listed = flags(_sparse(fields), name, layers)
        return [layer for layer in range(layers) if listed[layer]]
    pattern = fields.get("index_topk_pattern")
    if pattern is None:
        every = fields.count("index_topk_freq", default=1)
        first = fields.count("index_skip_topk_offset", default=2, least=0)
        return [layer for layer in range(layers) if max(layer - first + 1, 0) % every == 0]
    if not isinstance(pattern, str) or not set(pattern) <= {"F", "S"} or pattern[:1] != "F":
        raise fields.problem(
            "index_topk_pattern", pattern, "must be text of F (an indexer) and S, with F first"
        )
    return [layer for layer in range(layers) if pattern[layer : layer + 1] != "S"]


def flags(fields: Fields, name: str, layers: int) -> list[bool]:
    """Return what a field lists for each layer. Raises InvalidInput."""
    listed = fields.get(name)
    whole = isinstance(listed, list) and len(listed) == layers
    if not whole or any(type(each) is not int or each not in (0, 1) for each in listed):
        raise fields.problem(name, listed, f"must be a list of 0 or 1 for {layers} layers")
    return list(map(bool, listed))


def scorer(fields: Fields, indexer: Indexer) -> Layer:
    """The matrices of an indexer and its norms."""
    hidden, queries = fields.count("hidden_size"), indexer.heads * indexer.size
    if not indexer.copied:
        query = Matrix("self_attn.index_q_proj", hidden, queries)
        key = Matrix("self_attn.index_k_proj", hidden, indexer.size, on_every_gpu=True)
        return Layer([query, key], 2 * indexer.size)
    rank, keys = fields.count("q_lora_rank"), indexer.size + indexer.heads
    query = Matrix("self_attn.indexer.wq_b", rank, queries, on_every_gpu=True)
    key = Matrix("self_attn.indexer.wk_weights_proj", hidden, keys, on_every_gpu=True, full=True)
    return Layer([query, key], 0, wide=2 * indexer.size)
