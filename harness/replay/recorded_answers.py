"""Token ids of the recorded answers of a trace with messages, for `--answers recorded`.

In: programs, and a server whose `/tokenize` knows the model's chat template. Out: the tokens with
which a turn's prompt continues in the next prompt, by program and turn. Only an answer that
the template puts right behind the turn's prompt has some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import orjson

from servers.basics.errors import CellFailed
from traces import Message, Program
from traces.lenient import mapping

CONCURRENT = 8
Answers = Mapping[tuple[str, int], Sequence[int]]


async def recorded_answers(
    session: aiohttp.ClientSession, root: str, model: str, programs: Sequence[Program]
) -> Answers:
    """Raises CellFailed."""
    tokenizer = _Tokenizer(session, f"{root}/tokenize", model)
    different = {id(program.messages): program for program in programs}
    found = await asyncio.gather(*map(tokenizer.answers, different.values()))
    by_messages = dict(zip(different, found, strict=True))
    return {
        (program.id, turn): ids
        for program in programs
        for turn, ids in enumerate(by_messages[id(program.messages)])
        if ids
    }


class _Tokenizer:
    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model
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
        body = {
            "model": self._model,
            "messages": [message._asdict() for message in messages],
            "add_generation_prompt": generates,
        }
        try:
            async with (
                self._limit,
                self._session.post(
                    self._url, data=orjson.dumps(body), allow_redirects=False
                ) as response,
            ):
                tokens: Any = mapping(orjson.loads(await response.read())).get("tokens")
        except (aiohttp.ClientError, orjson.JSONDecodeError, OSError) as error:
            raise CellFailed(f"{self._url}: {type(error).__name__}: {error}") from None
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise CellFailed(
                f"{self._url}: answered {response.status} without tokens, which --answers recorded "
                "needs; use --answers generated"
            )
        return tokens
