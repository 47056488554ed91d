"""Writes a model folder that vLLM loads offline.

In: the contents of a config.json. Out: a folder with it, a byte-level tokenizer (one token per byte
of UTF-8), and optionally small random weights in vLLM's format (safetensors, bfloat16). With random
weights an answer depends on the prompt; with `--load-format dummy` it does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

BYTES = 256
BEGIN, END, PAD = BYTES, BYTES + 1, BYTES + 2
"""Special tokens, after the 256 bytes."""
EMBEDDING_SIGMA = 0.02
"""Small compared with the output of attention, so that an answer depends on the whole context."""
QUERY_GAIN = 2.0
"""Scale of queries and keys, so that attention selects tokens instead of averaging over all."""

TINY_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 320,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "torch_dtype": "bfloat16",
}
"""The KV takes 2 (K, V) × 2 layers × 2 heads × 64 × 2 bytes = 1 KiB per token."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %} {{ call['function'] | tojson }}{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(
    folder: Path, config: Mapping[str, Any], rng: np.random.Generator | None = None
) -> None:
    """Write a model folder, with random weights if an rng is given; `config` must then describe a
    Llama, such as TINY_CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", byte_tokenizer())
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(config))
    if rng is not None:
        write_safetensors(folder / "model.safetensors", llama_weights(config, rng))


def byte_tokenizer() -> dict[str, Any]:
    """Return a BPE tokenizer without merges, in which the token id is the byte."""
    characters = _byte_characters()
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": BEGIN, "content": "<|begin|>", **special},
            {"id": END, "content": "<|end|>", **special},
            {"id": PAD, "content": "<|pad|>", **special},
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(characters)},
            "merges": [],
        },
    }


def _byte_characters() -> list[str]:
    """Return GPT-2's characters for the 256 bytes: printable Latin-1 characters are unchanged, the
    other bytes are mapped to U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(BYTES)]


def stated_context(config: Mapping[str, Any]) -> Any:
    """Return the longest context that a config.json states, as vLLM reads it; None without one."""
    return config.get("model_max_length") or config.get("max_position_embeddings")


def _tokenizer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "model_max_length": stated_context(config),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def llama_weights(
    config: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    hidden, inner, vocab = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden)}
    norms = ["model.norm"]
    for layer in (f"model.layers.{n}" for n in range(config["num_hidden_layers"])):
        shapes |= {
            f"{layer}.self_attn.q_proj": (queries, hidden),
            f"{layer}.self_attn.k_proj": (keys, hidden),
            f"{layer}.self_attn.v_proj": (keys, hidden),
            f"{layer}.self_attn.o_proj": (hidden, queries),
            f"{layer}.mlp.gate_proj": (inner, hidden),
            f"{layer}.mlp.up_proj": (inner, hidden),
            f"{layer}.mlp.down_proj": (hidden, inner),
        }
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    drawn = {
        f"{name}.weight": (rng.standard_normal(shape) * _sigma(name, shape[1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    return drawn | {f"{name}.weight": np.ones(hidden, np.float32) for name in norms}


def _sigma(name: str, inputs: int) -> float:
    """Return the standard deviation of a weight; 1/√inputs keeps the scale of activations."""
    if name.endswith("embed_tokens"):
        return EMBEDDING_SIGMA
    gain = QUERY_GAIN if name.endswith(("q_proj", "k_proj")) else 1.0
    return gain / math.sqrt(inputs)


def write_safetensors(
    path: Path, tensors: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]
) -> None:
    """Write the header's length (8 bytes, little endian), the header (JSON), and the data. A
    bfloat16 is the upper half of a float32."""
    header: dict[str, Any] = {}
    data = bytearray()
    for name, tensor in tensors.items():
        start = len(data)
        data += (tensor.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [start, len(data)],
        }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


def _write_json(path: Path, contents: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
