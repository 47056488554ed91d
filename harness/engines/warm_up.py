"""Warm up a server before a cell's first turn.

The first steps of a new vLLM server are up to a third slower, because it touches memory for the
first time and sets up kernels and caches. With a high rate of arrivals this affects most of a cell.
The prompts are internal turns, which no policy sees or orders (`servers.policies.runner`). Their
blocks in the prefix cache are the oldest, so they are evicted first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from servers.basics.json_object import JsonObject

ROUNDS, CONCURRENT = 2, 8
SHORT_TOKENS, OUTPUT_TOKENS = 256, 16
TIMEOUT_S, MAX_ANSWER_BYTES = 60.0, 1 << 24
Body = Callable[[Any, int], JsonObject]
"""Returns a request, from the token ids of its prompt and the length of its answer."""


def warm_up(
    base_url: str, model: str, vocabulary: range, step_tokens: int, context: int, kv_tokens: int
) -> None:
    def body(prompt: Any, output_tokens: int) -> JsonObject:
        return {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "vllm_xargs": {"warm_up": 1},
        }

    url = f"{base_url}/v1/completions"
    send_prompts(url, body, vocabulary, step_tokens, context, kv_tokens)


def send_prompts(
    url: str, body: Body, vocabulary: range, step_tokens: int, context: int, kv_tokens: int
) -> None:
    """Send one prompt that fills a step, then short prompts concurrently, and repeat both.

    Errors are ignored, because the turns of the cell will report them. Lengths are in tokens.
    """
    room = min(context - OUTPUT_TOKENS, kv_tokens // 2)
    long, short = min(step_tokens, room), min(SHORT_TOKENS, room // CONCURRENT)
    if short < 1:
        return
    try:
        asyncio.run(_send(url, body, vocabulary, long, short))
    except OSError:
        return


async def _send(url: str, body: Body, vocabulary: range, long: int, short: int) -> None:
    from harness.replay.openai_client import open_client, read

    rng = np.random.default_rng(0)
    async with open_client(TIMEOUT_S) as client:

        async def send(tokens: int, output_tokens: int) -> None:
            prompt = rng.integers(vocabulary.start, vocabulary.stop, tokens, dtype=np.uint32)
            request = body(prompt, output_tokens)
            content = orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY)
            async with asyncio.timeout(TIMEOUT_S):
                await read(client, url, MAX_ANSWER_BYTES, content)

        for _ in range(ROUNDS):
            await send(long, 1)
            await asyncio.gather(*(send(short, OUTPUT_TOKENS) for _ in range(CONCURRENT)))
