"""Computes the KV memory of one token, in bytes, from a model's config.json."""

from __future__ import annotations

import json
from pathlib import Path

from servers.basics.errors import InvalidInput
from servers.profiles import MODELS
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.profiles.models.config import model_of
from servers.vllm.models.model_folder import resolve_model


def kv_bytes_per_token(
    model: str,
    weights: str = "auto",
    gpus: int = 1,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
) -> int:
    """Return the bytes on all GPUs of a tensor-parallel group. Raises InvalidInput."""
    if model in MODELS:
        return with_kv_cache(MODELS[model], kv_cache_dtype).kv_bytes_per_token_on(gpus)
    path = Path(resolve_model(model, weights).path) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        raise InvalidInput(
            f"--model {model}: no usable config.json, so its KV size is unknown; give the path of "
            "the model's folder"
        ) from None
    llm = model_of(config, model, where=str(path))
    return with_kv_cache(llm, kv_cache_dtype).kv_bytes_per_token_on(gpus)
