"""Measures the time to first token of a prompt whose KV is in the offload tier.

In: a server of ours with a tier, started with VLLM_SERVER_DEV_MODE=1, which permits resetting the
prefix cache. Out: `ReloadTimes`. Each round sends a prompt, resets the cache, and sends the prompt
again.
"""

from __future__ import annotations

import asyncio

from harness.calibrate.probe import Probe, Target, open_probe
from servers.basics.errors import MeasurementFailed
from servers.profiles.measured import ReloadTimes
from servers.vllm.launch.server import VllmServer

ROUNDS = 3
MAX_PROMPT_TOKENS = 8_192
STORE_S = 1.0
"""Time for the KV of a prompt to be stored in the tier."""
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}


def measure_reload(server: VllmServer, target: Target) -> ReloadTimes:
    return asyncio.run(_measure(server, target))


async def _measure(server: VllmServer, target: Target) -> ReloadTimes:
    """Measure `ROUNDS` rounds after one of warm-up.

    The tokens from the tier are the minimum of all rounds; the time of the others, which were
    computed, counts as reload time.
    """
    tokens = min(MAX_PROMPT_TOKENS, target.max_model_len - 1, target.kv_tokens // 2)
    async with open_probe(target) as probe:
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
    prompt = probe.new_prompt(tokens)
    await probe.complete(prompt, 1)
    await asyncio.sleep(STORE_S)
    _reset_cache(server)
    before = server.external_hit_tokens()
    seconds, _ = await probe.time_to_first_token(prompt)
    return seconds, server.external_hit_tokens() - before


def _reset_cache(server: VllmServer) -> None:
    status, _ = server.request("/reset_prefix_cache", method="POST")
    if status != 200:
        raise MeasurementFailed(f"{server.base_url}/reset_prefix_cache answered {status}")
