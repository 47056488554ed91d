"""Read the configuration of a running vLLM server from its HTTP API."""

from __future__ import annotations

import json

from servers.basics.errors import Unavailable
from servers.basics.text import one_line
from servers.vllm.launch.metrics_page import cache_config
from servers.vllm.launch.server import ServerInfo
from servers.vllm.models.model_folder import vocabulary_of

MAX_BYTES = 1 << 24
"""Limit of the size of each response."""


def describe(base_url: str) -> ServerInfo:
    """Return the server's configuration. Raises Unavailable if it is not a vLLM server."""
    from harness.replay.openai_client import fetch

    def get(path: str) -> bytes:
        return fetch(base_url + path, 10, MAX_BYTES)

    try:
        model = json.loads(get("/v1/models"))["data"][0]
        cache = cache_config(get("/metrics").decode())
        return ServerInfo(
            model=model["id"],
            version=json.loads(get("/version"))["version"],
            device=f"at {base_url}",
            kv_blocks=int(cache["num_gpu_blocks"]),
            block_size=int(cache["block_size"]),
            max_model_len=model["max_model_len"],
            vocabulary=vocabulary_of(model["id"]),
            cache_config=cache,
            flags=(),
            policy=None,
            costs_from=None,
        )
    except (OSError, LookupError, ValueError, TypeError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise Unavailable(
            f"--url {base_url}: not a vLLM server that publishes its configuration ({reason})"
        ) from None
