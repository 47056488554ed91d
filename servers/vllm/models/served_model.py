"""Finds the sizes of a model that a server has, from its config.json."""

from __future__ import annotations

import json
from pathlib import Path

from servers.basics.errors import InvalidInput
from servers.profiles import MODELS, Model
from servers.profiles.kv_cache_dtype import KvCacheDtype, is_sparse_latent, with_kv_cache
from servers.profiles.machines.gpus import Hardware
from servers.profiles.models.config import model_of
from servers.vllm.models.model_folder import resolve_model

PACKED = "fp8_ds_mla"
FORMATS = {
    **dict.fromkeys(("auto", "float16", "bfloat16"), KvCacheDtype.AUTO),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", PACKED), KvCacheDtype.FP8),
}
"""Formats of KV by the name that a server reports. It is that of its settings: `PACKED` is among
them if a user asked for it, and not if an engine process chose it for its GPU."""


def model_at_url(
    url: str, model: str, weights: str, reported: str, gpu: Hardware | None
) -> tuple[Model, KvCacheDtype]:
    """Return the sizes of the model of a running server, which reports this format of its KV.
    Raises InvalidInput."""
    if reported not in FORMATS:
        raise InvalidInput(
            f"--url {url}: KV in {reported} is not supported; start the server with "
            "--kv-cache-dtype auto or fp8"
        )
    packed = reported == PACKED  # which Hopper has in any case
    llm = served_model(model, weights, FORMATS[reported], None if packed else gpu)
    if gpu is None and not packed and is_sparse_latent(llm):
        raise InvalidInput(
            f"--url {url}: the KV bytes of {llm.name} depend on the GPU; name it with --hardware"
        )
    return llm, FORMATS[reported]


def served_model(
    model: str, weights: str, kv_cache_dtype: KvCacheDtype, gpu: Hardware | None
) -> Model:
    """Return the sizes of a model on a GPU, if that is known. Raises InvalidInput."""
    if model in MODELS:
        return with_kv_cache(MODELS[model], kv_cache_dtype, gpu)
    path = Path(resolve_model(model, weights).path) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        raise InvalidInput(
            f"--model {model}: no usable config.json, so its KV size is unknown; give the path of "
            "the model's folder"
        ) from None
    llm = model_of(config, model, where=str(path))
    return with_kv_cache(llm, kv_cache_dtype, gpu)
