"""Sends single prompts to an idle engine over HTTP, and records when each token arrives.

In: a `Target`. Out: answers with the arrival times of their tokens, in seconds on the machine's
monotonic clock. Lengths in tokens.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import numpy as np

from harness.replay.completion import PartialAnswer, completion_body, error_message
from harness.replay.http import (
    MAX_ERROR_BYTES,
    api_key,
    authorization,
    client_session,
    known_keys,
)
from harness.replay.live_server import LiveServer
from harness.replay.token_prompts import Ids
from servers.basics.errors import MeasurementFailed, TurnFailed
from traces import Turn

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
    headers = {"Content-Type": "application/json", **authorization(api_key())}
    async with client_session(
        headers,
        timeout_s=REQUEST_TIMEOUT_S,
        connection_per_request=True,  # a server may close a reused one while a request is sent
    ) as session:
        yield Probe(target, session)


class Probe:
    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self.target = target
        self._session = session
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
        turn = Turn(len(prompt), output_tokens)
        body = completion_body(self.target.model, prompt, turn, "profile", 0, True)
        answer = PartialAnswer(time.monotonic(), secrets=known_keys(api_key()))
        marks = []
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as response:
                if response.status != 200:
                    body_start = await response.content.read(MAX_ERROR_BYTES)
                    message = error_message(body_start, answer.secrets)
                    raise TurnFailed(f"the server answered {response.status}: {message}")
                async for received in response.content.iter_any():
                    now_s = time.monotonic()
                    answer.take(received, now_s)
                    marks.append((now_s, len(answer.ids)))
            answer.check(turn)
        except (TurnFailed, aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise MeasurementFailed(
                f"{self.target.base_url}: a prompt of {len(prompt)} tokens failed: {reason}"
            ) from None
        return answer, marks

    async def time_to_first_token(self, prompt: Ids) -> tuple[float, PartialAnswer]:
        answer, marks = await self.complete(prompt, 1)
        return next(at_s for at_s, tokens in marks if tokens) - answer.sent_at_s, answer
