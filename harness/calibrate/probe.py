"""Sends single prompts to an idle engine over HTTP, and records when each token arrives.

In: a `Target`. Out: answers with the arrival times of their tokens, in seconds on the machine's
monotonic clock. Lengths in tokens. `measure_reload` gives the time to the first token of a prompt
whose KV is in the offload tier.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.replay.completion import PartialAnswer, completion_body, error_message
from harness.replay.http import RequestFailed, api_key, known_keys
from harness.replay.live_server import LiveServer
from harness.replay.prompts import Ids
from servers.basics.errors import MeasurementFailed, TurnFailed
from traces import Turn

if TYPE_CHECKING:
    import openai
import asyncio

from servers.profiles.measured import ReloadTimes
from servers.vllm.launch.server import VllmServer

REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    base_url: str
    model: str
    vocabulary: range
    max_model_len: int
    kv_tokens: int
    step_tokens: int
    max_num_seqs: int


@asynccontextmanager
async def open_probe(target: Target) -> AsyncIterator[Probe]:
    from harness.replay.openai_client import open_client

    async with open_client(REQUEST_TIMEOUT_S) as client:
        yield Probe(target, client)


class Probe:
    def __init__(self, target: Target, client: openai.AsyncOpenAI) -> None:
        self.target = target
        self._client = client
        self._url = f"{LiveServer(target.base_url).root}/v1/completions"
        # Without a fixed seed, since the server may have cached prompts of an earlier run.
        self._rng = np.random.default_rng()

    def new_prompt(self, tokens: int) -> Ids:
        ids = self.target.vocabulary
        return self._rng.integers(ids.start, ids.stop, tokens, dtype=np.uint32)

    async def complete(
        self, prompt: Ids, output_tokens: int
    ) -> tuple[PartialAnswer, list[tuple[float, int]]]:
        """Return the answer, and for each chunk its time and the number of tokens until then."""
        from harness.replay.openai_client import answer as parts_of

        turn = Turn(len(prompt), output_tokens)
        body = completion_body(self.target.model, prompt, turn, "profile", 0, True)
        answer = PartialAnswer(time.monotonic(), secrets=known_keys(api_key()))
        marks = []
        try:
            async with parts_of(self._client, self._url, body) as parts:
                async for received in parts:
                    now_s = time.monotonic()
                    answer.take(received, now_s)
                    marks.append((now_s, len(answer.ids)))
            answer.check(turn)
        except (TurnFailed, RequestFailed) as error:
            reason = str(error)
            if isinstance(error, RequestFailed) and error.status is not None:
                message = error_message(error.body, answer.secrets)
                reason = f"the server answered {error.status}: {message}"
            raise MeasurementFailed(
                f"{self.target.base_url}: a prompt of {len(prompt)} tokens failed: {reason}"
            ) from None
        return answer, marks

    async def time_to_first_token(self, prompt: Ids) -> tuple[float, PartialAnswer]:
        answer, marks = await self.complete(prompt, 1)
        return next(at_s for at_s, tokens in marks if tokens) - answer.sent_at_s, answer


ROUNDS = 3
MAX_PROMPT_TOKENS = 8_192
STORE_S = 1.0
"""Time for the KV of a prompt to be stored in the tier."""
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}


def measure_reload(server: VllmServer, target: Target) -> ReloadTimes:
    """Measure rounds of a prompt, a reset of the prefix cache, and the prompt again. The server
    must have `DEV_MODE` in its environment, which permits the reset."""
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
