"""Sends single prompts to an idle engine over HTTP, and records when each token arrives.

In: a `Target`. Out: answers with the times of their tokens, on the machine's monotonic clock.
Times in seconds, lengths in tokens.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import numpy as np

from harness.replay.completion import Answer, completion_body, error_message
from harness.replay.http import api_key, authorization, known_keys
from harness.replay.live import Replica
from harness.replay.token_prompts import Ids
from servers.errors import MeasurementFailed, TurnFailed
from traces import Turn

REQUEST_WITHIN_S = 300.0


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
async def probing(target: Target) -> AsyncIterator[Probe]:
    async with aiohttp.ClientSession(
        # A reused connection may be closed by the server while a request is sent.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=REQUEST_WITHIN_S),
        headers={"Content-Type": "application/json", **authorization(api_key())},
    ) as session:
        yield Probe(target, session)


class Probe:
    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self.target = target
        self._session = session
        self._url = Replica(target.base_url).url
        self._rng = (
            np.random.default_rng()
        )  # no fixed seed: the server may have cached earlier prompts

    def new(self, tokens: int) -> Ids:
        ids = self.target.vocabulary
        return self._rng.integers(ids.start, ids.stop, tokens, dtype=np.uint32)

    async def ask(self, prompt: Ids, output_tokens: int) -> tuple[Answer, list[tuple[float, int]]]:
        """Returns the answer, and (time, tokens received so far) per chunk."""
        turn = Turn(len(prompt), output_tokens)
        body = completion_body(self.target.model, prompt, turn, "profile", 0, True)
        answer = Answer(time.monotonic(), secrets=known_keys(api_key()))
        marks = []
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as response:
                if response.status != 200:
                    what = error_message(await response.content.read(4096), answer.secrets)
                    raise TurnFailed(f"the server answered {response.status}: {what}")
                async for received in response.content.iter_any():
                    now_s = time.monotonic()
                    answer.take(received, now_s)
                    marks.append((now_s, len(answer.ids)))
            answer.check(turn)
        except (TurnFailed, aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise MeasurementFailed(
                f"{self.target.base_url}: a prompt of {len(prompt)} tokens failed: {why}"
            ) from None
        return answer, marks

    async def first_token(self, prompt: Ids) -> tuple[float, Answer]:
        answer, marks = await self.ask(prompt, 1)
        return next(at for at, n in marks if n) - answer.sent_at_s, answer
