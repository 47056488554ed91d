"""Measures the time of a prompt whose KV is in the offload tier.

In: a server of ours with a tier, started with VLLM_SERVER_DEV_MODE=1, which lets its own prefix
cache be emptied. Out: `ReloadTimes`. A prompt is computed, the cache emptied, the prompt sent
again.
"""

from __future__ import annotations

import asyncio

from harness.calibrate.probe import Probe, Target, probing
from servers.errors import MeasurementFailed
from servers.profiles.measured import ReloadTimes
from servers.vllm.launch.server import VllmServer

ROUNDS = 3
LONGEST_TOKENS = 8_192
STORED_S = 1.0
"""Time after which the KV of a prompt is in the tier."""
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}


def measure_reload(server: VllmServer, target: Target) -> ReloadTimes:
    return asyncio.run(_measure(server, target))


async def _measure(server: VllmServer, target: Target) -> ReloadTimes:
    """The least that came from the tier in any round counts: other tokens are computed, and their
    time counts as reload. The first round warms up."""
    tokens = min(LONGEST_TOKENS, target.max_model_len - 1, target.kv_tokens // 2)
    async with probing(target) as probe:
        rounds = [await _round(server, probe, tokens) for _ in range(1 + ROUNDS)][1:]
    from_tier = min(hits for _, hits in rounds)
    if from_tier == 0:
        raise MeasurementFailed(
            f"none of {tokens} tokens were reloaded from the offload tier; increase --offload-gb"
        )
    return ReloadTimes(
        tokens=tokens, from_tier_tokens=from_tier, seconds=tuple(s for s, _ in rounds)
    )


async def _round(server: VllmServer, probe: Probe, tokens: int) -> tuple[float, int]:
    prompt = probe.new(tokens)
    await probe.ask(prompt, 1)
    await asyncio.sleep(STORED_S)
    _empty_cache(server)
    before = server.external_hit_tokens()
    seconds, _ = await probe.first_token(prompt)
    return seconds, server.external_hit_tokens() - before


def _empty_cache(server: VllmServer) -> None:
    status, _ = server.request("/reset_prefix_cache", method="POST")
    if status != 200:
        raise MeasurementFailed(f"{server.base_url}/reset_prefix_cache answered {status}")
