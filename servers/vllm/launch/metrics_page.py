"""Reads the Prometheus page that a vLLM server serves at `/metrics`."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

CACHE_CONFIG = "vllm:cache_config_info"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
KV_USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


class ServerLoad(NamedTuple):
    """The load of a server, of all its engines together."""

    running: int
    waiting: int
    kv_usage: float
    """Share of the KV memory that turns and pins hold, from 0 to 1."""


def samples(page: str, name: str) -> list[Sample]:
    """Return a metric's samples, one per engine. Raises ValueError if the page is malformed."""
    return [s for f in text_string_to_metric_families(page) for s in f.samples if s.name == name]


def cache_config(page: str) -> dict[str, str]:
    """Return vLLM's resolved settings of the KV cache, which are the labels of a metric."""
    return next((dict(sample.labels) for sample in samples(page, CACHE_CONFIG)), {})


def server_load(page: str) -> ServerLoad | None:
    """Return None if the page lacks a metric. Raises ValueError if it is malformed.

    Only the lines of these metrics are parsed, because a page has thousands.
    """
    names = (RUNNING, WAITING, KV_USAGE)
    lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(names))
    found = {name: [sample.value for sample in samples(lines, name)] for name in names}
    if not all(found.values()):
        return None
    usage = found[KV_USAGE]
    return ServerLoad(int(sum(found[RUNNING])), int(sum(found[WAITING])), sum(usage) / len(usage))
