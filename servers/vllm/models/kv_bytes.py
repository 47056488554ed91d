"""Computes the KV memory of one token, in bytes, from a model's config.json."""

from __future__ import annotations

import json
from pathlib import Path

from servers.errors import UnknownModel
from servers.profiles import MODELS
from servers.profiles.llms import KV_ENTRY_BYTES
from servers.vllm.models.model_folder import resolve_model


def kv_bytes_per_token(model: str, weights: str = "auto") -> int:
    """Return 2 (K and V) × layers × KV heads × head size × 2 bytes. Raises UnknownModel."""
    if model in MODELS:
        return MODELS[model].kv_bytes_per_token
    path = Path(resolve_model(model, weights).path) / "config.json"
    try:
        config = json.loads(path.read_text())
        shape = config.get("text_config", config)
        heads = shape["num_attention_heads"]
        kv_heads = shape.get("num_key_value_heads", heads)
        head_dim = shape.get("head_dim") or shape["hidden_size"] // heads
        return int(2 * shape["num_hidden_layers"] * kv_heads * head_dim * KV_ENTRY_BYTES)
    except (OSError, KeyError, ValueError):
        raise UnknownModel(
            f"--model {model}: no usable config.json, so its KV size is unknown; give the path of "
            "the model's folder"
        ) from None
