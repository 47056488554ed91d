"""Reads the Prometheus page that a vLLM or SGLang server serves at `/metrics`."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

KV_USAGE = "vllm:kv_cache_usage_perc"
LOADS = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting", KV_USAGE),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
)
"""The metrics of `ServerLoad`, for each project."""


class ServerLoad(NamedTuple):
    """The load of a server, of all its engines together."""

    running: int
    waiting: int
    kv_usage: float
    """Share of the KV memory that turns and pins hold, from 0 to 1."""


def samples(page: str, name: str) -> list[Sample]:
    """Return a metric's samples, one per engine. Raises ValueError if the page is malformed."""
    return [s for f in text_string_to_metric_families(page) for s in f.samples if s.name == name]


def server_load(page: str) -> ServerLoad | None:
    """Return None if the page lacks a metric. Raises ValueError if it is malformed.

    Only the lines of these metrics are parsed, because a page has thousands.
    """
    for names in LOADS:
        lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(names))
        running, waiting, usage = ([s.value for s in samples(lines, name)] for name in names)
        if running and waiting and usage:
            return ServerLoad(int(sum(running)), int(sum(waiting)), sum(usage) / len(usage))
    return None
