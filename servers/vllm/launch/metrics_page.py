"""Reads the Prometheus page that a vLLM server serves at `/metrics`."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

CACHE_CONFIG = "vllm:cache_config_info"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
KV_USAGE = "vllm:kv_cache_usage_perc"


def samples(page: str, name: str) -> list[Sample]:
    """Return a metric's samples, one per engine. Raises ValueError if the page is malformed."""
    return [s for f in text_string_to_metric_families(page) for s in f.samples if s.name == name]


def cache_config(page: str) -> dict[str, str]:
    """Return vLLM's resolved settings of the KV cache, which are the labels of a metric."""
    return next((dict(sample.labels) for sample in samples(page, CACHE_CONFIG)), {})
