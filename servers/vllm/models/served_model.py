"""Finds the sizes of a model that a server has, from its config.json."""

from __future__ import annotations

import json
from pathlib import Path

from servers.basics.errors import InvalidInput
from servers.profiles import MODELS, Model
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.profiles.models.config import model_of
from servers.vllm.models.model_folder import resolve_model


def served_model(model: str, weights: str, kv_cache_dtype: KvCacheDtype) -> Model:
    """Raises InvalidInput."""
    if model in MODELS:
        return with_kv_cache(MODELS[model], kv_cache_dtype)
    path = Path(resolve_model(model, weights).path) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        raise InvalidInput(
            f"--model {model}: no usable config.json, so its KV size is unknown; give the path of "
            "the model's folder"
        ) from None
    llm = model_of(config, model, where=str(path))
    return with_kv_cache(llm, kv_cache_dtype)
