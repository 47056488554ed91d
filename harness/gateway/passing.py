"""A completion passed through: the client's request to a server, the answer back as it comes.

What the server answers passes unchanged, errors too, byte by byte. A client that goes away takes
its request with it, so that the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from aiohttp import web

from harness.completion import as_client_sees, shortened
from harness.course import Line
from harness.gateway.answers import Answer, Tap
from harness.gateway.bodies import rewritten
from harness.gateway.conversations import prompt_of
from harness.gateway.identity import Said
from harness.gateway.messages import said_in
from harness.gateway.refusals import refusal
from harness.gateway.servers import Backend
from harness.gateway.turns import Turns, UnderWay

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",
        "expect",
    ]
)
"""Of one connection (RFC 9110, §7.6.1), or set anew by our client."""
NO_ANSWER = (aiohttp.ClientError, OSError, TimeoutError)


class Passing:
    def __init__(
        self,
        backends: Sequence[Backend],
        session: aiohttp.ClientSession,
        api_key: str | None,
        turns: Turns,
        keeps_messages: bool = False,
    ) -> None:
        self._backends = backends
        self._session = session
        self._api_key = api_key
        self._turns = turns
        self._keeps_messages = keeps_messages

    async def other(self, request: web.Request, path: str) -> web.StreamResponse:
        """What is no completion goes to the first server."""
        body = await request.read() if request.can_read_body else None
        url = f"{self._backends[0].url}/v1/{path}"
        try:
            async with self._session.request(
                request.method,
                url,
                params=request.query,
                data=body,
                headers=self._headers(request),
                allow_redirects=False,
            ) as answer:
                return await _whole(answer)
        except NO_ANSWER as failure:
            return refusal(502, f"no answer from {url}: {_reason(failure)}", "api_error")

    async def complete(
        self, request: web.Request, path: str, body: dict[str, Any], raw: bytes, who: Said
    ) -> web.StreamResponse:
        turn = self._turns.begin(who, body.get("model"), prompt_of(body))
        answer = Answer(secret=self._api_key)
        streamed = web.StreamResponse()
        error: str | None = None
        try:
            response = await self._forward(request, path, body, raw, turn, answer, streamed)
            error = answer.error or (None if answer.whole else "the stream was cut")
            return response
        except asyncio.CancelledError:
            error = turn.cancelled
            raise
        except (*NO_ANSWER, ValueError) as failure:
            error = f"no answer from the server: {_reason(failure)}"
            if not streamed.prepared:
                return refusal(502, error, "api_error")
            if request.transport is not None:  # a cut stream is cut for the client too
                request.transport.abort()
            return streamed
        finally:
            self._over(turn, body, answer, error)

    async def _forward(
        self,
        request: web.Request,
        path: str,
        body: dict[str, Any],
        raw: bytes,
        turn: UnderWay,
        answer: Answer,
        streamed: web.StreamResponse,
    ) -> web.StreamResponse:
        backend, begun, now_s = self._backends[turn.replica], turn.begun, self._turns.now_s
        tag = {"program_id": begun.program.id, "turn": begun.turn} if backend.tagged else None
        hide_usage, data = rewritten(body, raw, tag)
        headers = self._headers(request)
        async with self._session.post(
            f"{backend.url}/v1/{path}", data=data, headers=headers, allow_redirects=False
        ) as coming:
            if coming.content_type != "text/event-stream":
                response = await _whole(coming)
                answer.read(bytes(response.body or b""), now_s())  # type: ignore[arg-type]
                return response
            streamed.set_status(coming.status)
            streamed.headers.update(_passed_on(coming.headers))
            await streamed.prepare(request)
            tap = Tap(answer, hide_usage)
            async for received in coming.content.iter_any():
                if passed := tap.take(received, now_s()):
                    await streamed.write(passed)
            if rest := tap.end():
                await streamed.write(rest)
            await streamed.write_eof()
            return streamed

    def _over(
        self, turn: UnderWay, body: dict[str, Any], answer: Answer, error: str | None
    ) -> None:
        program = turn.begun.program
        finished_s = answer.last_byte_at_s if error is None else None
        finished_s = self._turns.now_s() if finished_s is None else finished_s
        kept = self._turns.programs.kept_tokens(program, turn.prompt, answer.prompt_tokens)
        seen = _seen(turn, answer, finished_s) | {"kept_tokens": max(kept, 0)}
        if error is None:
            if self._keeps_messages:
                repeated = program.prompt.shared(turn.prompt) if program.prompt else 0
                seen |= said_in(body, repeated, answer)
            self._turns.programs.answered(program, turn.prompt, answer)
        self._turns.over(turn, finished_s, error, seen)

    def _headers(self, request: web.Request) -> dict[str, str]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers


def _seen(turn: UnderWay, answer: Answer, finished_s: float) -> Line:
    seen = as_client_sees(
        turn.sent_s,
        answer.first_token_at_s,
        finished_s,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        cached_tokens=answer.cached_tokens,
        queue_s=answer.queue_s,
    ) | {"tools": list(answer.tools)}
    return seen if turn.begun.turn else seen | {"system": _system(turn, answer)}


def _system(turn: UnderWay, answer: Answer) -> Line | None:
    """What a trace shares between programs: the system prompt, its tokens by its share of the
    prompt's characters."""
    prompt = turn.prompt
    if not prompt.system:
        return None
    tokens = int(answer.prompt_tokens * prompt.system / prompt.ends[-1])
    return {"id": f"system:{prompt.digests[prompt.least - 2].hex()[:12]}", "tokens": tokens}


async def _whole(answer: aiohttp.ClientResponse) -> web.Response:
    body = await answer.read()
    return web.Response(status=answer.status, body=body, headers=_passed_on(answer.headers))


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in HOP_BY_HOP}


def _reason(failure: BaseException) -> str:
    return shortened(str(failure) or type(failure).__name__)
