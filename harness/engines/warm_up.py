"""Work before a cell's first turn, so that no policy is measured on a cold server.

A vLLM that has just started computes its first steps up to a third slower (memory is touched for
the first time, kernels and caches are set up), which with a fast arrival of jobs is most of a cell.
The prompts are internal turns, which no policy sees or orders (`servers.policy_runner`), and
what
they leave in the prefix cache is older than all that follows, so that it is evicted first.
"""

from __future__ import annotations

import asyncio

import aiohttp
import numpy as np
import orjson

from harness.replay.http import api_key, authorization
from harness.replay.live import Replica

ROUNDS, AT_ONCE = 2, 8
SHORT_TOKENS, OUTPUT_TOKENS = 256, 16
WITHIN_S = 60.0


def warm_up(
    base_url: str, model: str, vocabulary: range, step_tokens: int, context: int, kv_tokens: int
) -> None:
    """A prompt of a whole step, then some short ones at once, twice. What fails here is left to
    the turns to tell; tokens."""
    room = min(context - OUTPUT_TOKENS, kv_tokens // 2)
    long, short = min(step_tokens, room), min(SHORT_TOKENS, room // AT_ONCE)
    if short < 1:
        return
    try:
        asyncio.run(_send(Replica(base_url).url, model, vocabulary, long, short))
    except (aiohttp.ClientError, OSError, TimeoutError):
        return


async def _send(url: str, model: str, vocabulary: range, long: int, short: int) -> None:
    rng = np.random.default_rng(0)
    headers = {"Content-Type": "application/json", **authorization(api_key())}
    timeout = aiohttp.ClientTimeout(total=WITHIN_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:

        async def ask(tokens: int, output_tokens: int) -> None:
            body = {
                "model": model,
                "prompt": rng.integers(vocabulary.start, vocabulary.stop, tokens, dtype=np.uint32),
                "max_tokens": output_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "vllm_xargs": {"warm_up": 1},
            }
            content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
            async with session.post(url, data=content, allow_redirects=False) as response:
                await response.read()

        for _ in range(ROUNDS):
            await ask(long, 1)
            await asyncio.gather(*(ask(short, OUTPUT_TOKENS) for _ in range(AT_ONCE)))
