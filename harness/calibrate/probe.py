"""Sends single prompts to an idle engine over HTTP, and records when each token arrives.

In: a `Target`. Out: answers with the arrival times of their tokens, in seconds on the machine's
monotonic clock. Lengths in tokens.
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
from harness.replay.token_prompts import Ids
from servers.basics.errors import MeasurementFailed, TurnFailed
from traces import Turn

if TYPE_CHECKING:
    import openai

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
