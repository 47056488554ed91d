"""`bench doctor --pins`: the expected blocks, and the reading of vLLM's KV usage metric."""

from __future__ import annotations

import pytest

from harness.calibrate.verify_pins import EXPENSIVE_COSTS, expected_blocks, kv_usage
from servers.variants import make_policy, variants


@pytest.mark.parametrize(
    ("policy", "block_tokens", "blocks"),
    [
        # 72, 139, 290, 404 tokens have KV; the fork keeps the partly filled last block.
        ("continuum-preview", 16, [5, 9, 19, 26, 0]),
        ("continuum-preview", 32, [3, 5, 10, 13, 0]),
        ("continuum", 16, [4, 8, 18, 25, 0]),
        ("static-ttl", 16, [4, 8, 18, 25, 0]),
        ("static-ttl", 32, [2, 4, 9, 12, 0]),
        ("fcfs", 32, [0, 0, 0, 0, 0]),
    ],
)
def test_the_expected_blocks_come_from_virtual_time(
    policy: str, block_tokens: int, blocks: list[int]
) -> None:
    instance = make_policy(variants(policy)[0], EXPENSIVE_COSTS)
    assert expected_blocks(instance, 1.0, block_tokens, kv_blocks=500) == blocks


def test_kv_usage_is_read_from_the_metrics() -> None:
    page = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0251256
vllm:num_requests_running{engine="0"} 2.0
"""
    assert kv_usage(page) == 0.0251256
    with pytest.raises(RuntimeError, match="is this vLLM"):
        kv_usage("up 1")
