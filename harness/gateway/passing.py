"""A completion passed through: the client's request to a server, the answer back as it comes.

What the server answers passes unchanged, errors too, but for the user's key in these. A client that
goes away takes its request with it, so that the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from msgspec import UNSET, UnsetType
from yarl import URL

from harness.gateway.answers import Answer, Tap, without
from harness.gateway.bodies import rewritten
from harness.gateway.conversations import prompt_of
from harness.gateway.identity import Said
from harness.gateway.messages import add_messages
from harness.gateway.refusals import refusal
from harness.gateway.servers import Backend
from harness.gateway.turns import ActiveTurn, Turns
from harness.redact import MIN_CHARS, is_distinctive, redact
from harness.replay.completion import set_measured, shortened
from harness.replay.http import known_keys
from servers.records import ChatMessage, PromptPrefix, TurnRecord

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
WHAT = "the gateway knows chat/completions, completions, models and embeddings"
SAFE = "/:@"
SHOWN_CHARS = 100
MOST_ANSWER_BYTES = 64 << 20
TOO_LONG = f"its answer is longer than {MOST_ANSWER_BYTES >> 20} MiB"
UNREAD = "the gateway could not read the answer"
KEYS = ("authorization", "x-api-key", "api-key")
"""Headers in which clients send one."""
NO_ANSWER = (aiohttp.ClientError, OSError, TimeoutError)


class Passing:
    def __init__(
        self,
        backends: Sequence[Backend],
        session: aiohttp.ClientSession,
        api_key: str | None,
        turns: Turns,
        keeps_messages: bool = False,
        *,
        hides_key: bool = False,
    ) -> None:
        """`hides_key`: what clients send as their key is not for the server."""
        self._backends = backends
        self._session = session
        self._api_key = api_key
        self._turns = turns
        self._keeps_messages = keeps_messages
        self._hides_key = hides_key

    async def other(self, request: web.Request, path: str) -> web.StreamResponse:
        """What is no completion and passes goes to the first server; most does not, since there it
        would be asked with the user's key (files, adapters, batches) or not be recorded."""
        if not _passes(request.method, path):
            return refusal(404, f"{request.method} /v1/{path[:SHOWN_CHARS]} does not pass: {WHAT}")
        body = await request.read() if request.can_read_body else None
        url = f"{self._backends[0].url}/v1/{quote(path, safe=SAFE)}"
        try:
            async with self._session.request(
                request.method,
                URL(url, encoded=True),
                params=request.query,
                data=body,
                headers=self._headers(request),
                allow_redirects=False,
            ) as answer:
                response = await _whole(answer)
                return response if answer.ok else self._without_key(response)
        except (*NO_ANSWER, ValueError) as failure:
            return refusal(
                502,
                f"no answer from {url}: {_reason(failure, self._secrets(request))}",
                "api_error",
            )

    async def complete(
        self, request: web.Request, path: str, body: dict[str, Any], raw: bytes, who: Said
    ) -> web.StreamResponse:
        answer = Answer(secrets=self._secrets(request))
        turn = self._turns.begin(who, body.get("model"), prompt_of(body))
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
            error = f"no answer from the server: {_reason(failure, answer.secrets)}"
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
        turn: ActiveTurn,
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
                return response if answer.error is None else self._without_key(response)
            streamed.set_status(coming.status)
            streamed.headers.update(_passed_on(coming.headers))
            await streamed.prepare(request)
            tap, left = Tap(answer, hide_usage, self._api_key), MOST_ANSWER_BYTES
            async for received in coming.content.iter_any():
                if (left := left - len(received)) < 0:
                    raise ValueError(TOO_LONG)
                if passed := tap.take(received, now_s()):
                    await streamed.write(passed)
            if rest := tap.end():
                await streamed.write(rest)
            await streamed.write_eof()
            return streamed

    def _over(
        self, turn: ActiveTurn, body: dict[str, Any], answer: Answer, error: str | None
    ) -> None:
        """End the turn, with a record even if the answer cannot be understood."""
        finished_s = answer.last_byte_at_s if error is None else None
        finished_s = self._turns.now_s() if finished_s is None else finished_s
        reason: str | None = UNREAD
        try:
            turn.record, reason = self._measured(turn, body, answer, finished_s, error), error
        finally:
            self._turns.over(turn, finished_s, reason)

    def _measured(
        self,
        turn: ActiveTurn,
        body: dict[str, Any],
        answer: Answer,
        finished_s: float,
        error: str | None,
    ) -> TurnRecord:
        """The turn's record with what the request and its answer show; without secrets."""
        record, program = copy(turn.record), turn.begun.program
        kept = self._turns.programs.kept_tokens(program, turn.prompt, answer.prompt_tokens)
        set_measured(
            record,
            sent_s=turn.sent_s,
            first_token_s=answer.first_token_at_s,
            finished_s=finished_s,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            queue_s=answer.queue_s,
        )
        record.kept_tokens, record.tools = max(kept, 0), tuple(answer.tools)
        record.system = _system(turn, answer)
        if error is None:
            if self._keeps_messages:
                repeated = program.prompt.shared(turn.prompt) if program.prompt else 0
                add_messages(record, body, repeated, answer)
            self._turns.programs.answered(program, turn.prompt, answer)
        _redact(record, [key for key in answer.secrets if is_distinctive(key)])
        return record

    def _secrets(self, request: web.Request) -> tuple[str, ...]:
        """What a server may repeat of them."""
        said = [request.headers.get(name, "").rpartition(" ")[2] for name in KEYS]
        said = [key for key in said if len(key) >= MIN_CHARS]
        return (*known_keys(self._api_key), *said)

    def _without_key(self, response: web.Response) -> web.Response:
        """Some servers repeat what they refuse."""
        response.body = without(bytes(response.body or b""), self._api_key)  # type: ignore[arg-type]
        return response

    def _headers(self, request: web.Request) -> dict[str, str]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        if self._hides_key:
            headers = {k: v for k, v in headers.items() if k.lower() not in KEYS}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers


def _passes(method: str, path: str) -> bool:
    kind, *rest = path.split("/")
    if any(part in ("", ".", "..") for part in rest):
        return False
    return (method, kind) == ("GET", "models") or (method, path) == ("POST", "embeddings")


def _redact(record: TurnRecord, keys: Sequence[str]) -> None:
    """Remove secrets from the texts that the request and its answer brought."""
    if not keys:
        return
    record.tools = tuple(redact(name, keys) for name in record.tools or ())
    if record.messages is not UNSET:
        record.messages = [ChatMessage(m.role, redact(m.content, keys)) for m in record.messages]
    if record.answer is not UNSET:
        record.answer = redact(record.answer, keys)
    if isinstance(record.command, str):
        record.command = redact(record.command, keys)


def _system(turn: ActiveTurn, answer: Answer) -> PromptPrefix | UnsetType:
    """The system prompt of a first turn, which a trace shares between programs; its tokens are
    estimated by its share of the prompt's characters."""
    prompt = turn.prompt
    if turn.begun.turn or not prompt.system:
        return UNSET
    tokens = int(answer.prompt_tokens * prompt.system / prompt.ends[-1])
    return PromptPrefix(f"system:{prompt.digests[prompt.least - 2].hex()[:12]}", tokens)


async def _whole(answer: aiohttp.ClientResponse) -> web.Response:
    body = bytearray()
    async for received in answer.content.iter_any():
        body += received
        if len(body) > MOST_ANSWER_BYTES:
            raise ValueError(TOO_LONG)
    return web.Response(status=answer.status, body=bytes(body), headers=_passed_on(answer.headers))


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in HOP_BY_HOP}


def _reason(failure: BaseException, secrets: Sequence[str]) -> str:
    return shortened(redact(str(failure), secrets) or type(failure).__name__)
