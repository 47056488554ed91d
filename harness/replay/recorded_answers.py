"""Token ids of the recorded answers of a trace with messages, for `--answers recorded`.

In: programs, and a server whose `/tokenize` knows the model's chat template. Out: the tokens with
which a turn's prompt continues in the next prompt, by program and turn. Only an answer that
the template puts right behind the turn's prompt has some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from harness.replay.http import RequestFailed
from servers.basics.errors import CellFailed
from traces import Message, Program
from traces.lenient import mapping

if TYPE_CHECKING:
    import openai

CONCURRENT = 8
TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 64 << 20
Answers = Mapping[tuple[str, int], Sequence[int]]


async def recorded_answers(root: str, model: str, programs: Sequence[Program]) -> Answers:
    """Raises CellFailed."""
    from harness.replay.openai_client import open_client

    different = {id(program.messages): program for program in programs}
    async with open_client(TIMEOUT_S) as client:
        tokenizer = _Tokenizer(client, f"{root}/tokenize", model)
        found = await asyncio.gather(*map(tokenizer.answers, different.values()))
    by_messages = dict(zip(different, found, strict=True))
    return {
        (program.id, turn): ids
        for program in programs
        for turn, ids in enumerate(by_messages[id(program.messages)])
        if ids
    }


class _Tokenizer:
    def __init__(self, client: openai.AsyncOpenAI, url: str, model: str) -> None:
        self._client, self._url, self._model = client, url, model
        self._limit = asyncio.Semaphore(CONCURRENT)

    async def answers(self, program: Program) -> list[list[int]]:
        """Return the tokens of the answer of each turn; none if they are unknown."""
        return [await self._answer(program.messages, end) for end in program.prompt_messages]

    async def _answer(self, messages: Sequence[Message], end: int) -> list[int]:
        if end >= len(messages) or messages[end].role != "assistant":
            return []
        prompt = await self._tokens(messages[:end], generates=True)
        whole = await self._tokens(messages[: end + 1], generates=False)
        return whole[len(prompt) :] if whole[: len(prompt)] == prompt else []

    async def _tokens(self, messages: Sequence[Message], *, generates: bool) -> list[int]:
        from harness.replay.openai_client import read

        body = {
            "model": self._model,
            "messages": [message._asdict() for message in messages],
            "add_generation_prompt": generates,
        }
        try:
            async with self._limit:
                answer = await read(self._client, self._url, MAX_ANSWER_BYTES, orjson.dumps(body))
            tokens: Any = mapping(orjson.loads(answer)).get("tokens")
        except (RequestFailed, orjson.JSONDecodeError) as error:
            reason = str(error)
        else:
            if isinstance(tokens, list) and all(type(token) is int for token in tokens):
                return tokens
            reason = "no tokens in the answer"
        raise CellFailed(
            f"{self._url}: {reason}; --answers recorded needs the tokens of messages, so use "
            "--answers generated"
        )
