"""Reads from a vLLM server's page at `/metrics` what only vLLM has."""

from __future__ import annotations

from servers.processes.metrics_page import samples

CACHE_CONFIG = "vllm:cache_config_info"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"


def cache_config(page: str) -> dict[str, str]:
    """Return vLLM's resolved settings of the KV cache, which are the labels of a metric."""
    return next((dict(sample.labels) for sample in samples(page, CACHE_CONFIG)), {})
