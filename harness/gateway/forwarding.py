"""Forwards completion requests to a server, and streams the answers back.

Answers are not changed, except that the user's key is removed from them. If the client
disconnects, the request to the server is cancelled, so that the server stops generating.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from urllib.parse import quote

import aiohttp
from aiohttp import web
from msgspec import UNSET, UnsetType
from yarl import URL

from harness.gateway.access import refusal
from harness.gateway.answers import AnswerApi, ForwardedAnswer, Tap, json_text
from harness.gateway.anthropic_messages import MESSAGES
from harness.gateway.client_request import Caller, read_body, rewrite_body
from harness.gateway.conversations import DigestedPrompt, add_messages, prompt_of
from harness.gateway.openai_responses import RESPONSES
from harness.gateway.responses import (
    HOP_BY_HOP,
    MAX_ANSWER_BYTES,
    TOO_LONG,
    end_to_end_headers,
    listed_model,
    whole,
    without_key,
)
from harness.gateway.turns import CLIENT_DISCONNECTED, ActiveTurn, Turns, client_left
from harness.replay.completion import call_texts, measure, shortened
from harness.replay.http import FAILURES, known_keys, refuse_compressed
from harness.replay.identity import IDENTITY_HEADERS, identity_headers
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidRouter
from servers.basics.json_object import JsonObject
from servers.basics.redact import MIN_CHARS, is_distinctive, redact
from servers.records.turns import ChatMessage, PromptPrefix, TurnRecord
from traces.formats.shared.chat_messages import plain_text
from traces.lenient import items, mapping
from traces.token_counts import TokenCounter

REPLACED = HOP_BY_HOP | IDENTITY_HEADERS
"""Headers of a turn that the gateway sets itself."""
COMPLETIONS = AnswerApi(lambda body: body, ForwardedAnswer, has_stream_options=True)
APIS = {
    "chat/completions": COMPLETIONS,
    "completions": COMPLETIONS,
    "messages": MESSAGES,
    "responses": RESPONSES,
}
"""By the path of the requests that are turns."""
FORWARDED = frozenset(("embeddings", "messages/count_tokens"))
"""Paths of further POST requests that are forwarded, but not recorded."""
SAFE = "/:@"
SHOWN_CHARS = 100
MODEL = "models/"
UNREADABLE = "the gateway could not read the answer"
KEY_HEADERS = ("authorization", "x-api-key", "api-key")
"""Headers in which clients send an API key."""
NO_ANSWER = (*FAILURES, ValueError)


@dataclass(frozen=True, slots=True)
class Forwarding:
    backends: Sequence[LiveServer]
    session: aiohttp.ClientSession
    api_key: str | None
    turns: Turns
    keeps_messages: bool
    strips_client_key: bool
    """The clients' API key is not forwarded to the server."""
    counter: TokenCounter | None = None
    """Counts the tokens that a server does not report."""

    async def other(
        self, request: web.Request, path: str, turns: Collection[str]
    ) -> web.StreamResponse:
        """Forward a request that is not a completion to the first server, if its path is allowed.

        Other paths are refused, because such requests would use the user's key (files, adapters,
        batches), or would not be recorded. `turns`: the paths that this gateway takes as turns.
        """
        if not _is_forwarded(request.method, path):
            supported = ", ".join((*sorted(turns), *sorted(FORWARDED)))
            return refusal(
                404,
                f"{request.method} /v1/{path[:SHOWN_CHARS]} is not forwarded: the gateway supports"
                f" {supported} and models",
            )
        body = await read_body(request) if request.can_read_body else None
        try:
            response = await self._first_server(request, path, body)
            if response.status == 404 and path.startswith(MODEL):
                models = await self._first_server(request, "models", None)
                response = listed_model(models, path.removeprefix(MODEL)) or response
            return response
        except NO_ANSWER as failure:
            return refusal(
                502,
                f"no answer from {self.backends[0].root}: "
                f"{_reason(failure, self._secrets(request))}",
                "api_error",
            )

    async def _first_server(
        self, request: web.Request, path: str, body: bytes | None
    ) -> web.Response:
        async with self.session.request(
            request.method,
            URL(f"{self.backends[0].root}/v1/{quote(path, safe=SAFE)}", encoded=True),
            params=request.query,
            data=body,
            headers=self._headers(request),
            allow_redirects=False,
        ) as answer:
            return without_key(
                await whole(answer, self.api_key), self.api_key, is_error=not answer.ok
            )

    async def complete(
        self, request: web.Request, path: str, body: JsonObject, raw: bytes, caller: Caller
    ) -> web.StreamResponse:
        api = APIS[path]
        answer = api.answer(secrets=self._secrets(request), counter=self.counter)
        chat = api.chat(body)
        turn = self.turns.start(caller, body.get("model"), prompt_of(chat))
        streamed = web.StreamResponse()
        error: str | None = None
        try:
            await self.turns.route(turn, is_last=caller.is_final or None)
            response = await self._forward(request, path, body, raw, turn, answer, streamed)
            error = answer.error or (None if answer.is_whole else "the stream was cut")
            return response
        except asyncio.CancelledError:
            error = _cancelled(turn, answer)
            raise
        except InvalidRouter as failure:
            error = str(failure)
            return refusal(500, error, "api_error")
        except NO_ANSWER as failure:
            if client_left(request):
                error = _cancelled(turn, answer)
                return streamed
            error = f"no answer from the server: {_reason(failure, answer.secrets)}"
            if not streamed.prepared:
                return refusal(502, error, "api_error")
            if request.transport is not None:  # the client must see that the stream was cut
                request.transport.abort()
            return streamed
        finally:
            self._end_turn(turn, chat, answer, error)

    async def _forward(
        self,
        request: web.Request,
        path: str,
        body: JsonObject,
        raw: bytes,
        turn: ActiveTurn,
        answer: ForwardedAnswer,
        streamed: web.StreamResponse,
    ) -> web.StreamResponse:
        backend, started, now_s = self.backends[turn.replica], turn.started, self.turns.now_s
        program = started.program
        tag = {"program_id": program.id, "turn": started.turn} if backend.tagged else None
        ids = {end.field: program.id for end in backend.session_ends}
        asks = APIS[path].has_stream_options
        hide_usage, data = rewrite_body(body, raw, tag, ids, asks_for_usage=asks)
        is_final = bool(turn.routed and turn.routed.is_last)
        headers = self._headers(request, REPLACED)
        headers |= identity_headers(program.id, program.job_id, is_final=is_final)
        async with self.session.post(
            f"{backend.root}/v1/{path}", data=data, headers=headers, allow_redirects=False
        ) as upstream:
            if upstream.content_type != "text/event-stream":
                response = await whole(upstream, self.api_key)
                answer.read_whole(bytes(response.body or b""), now_s())  # type: ignore[arg-type]
                return without_key(response, self.api_key, is_error=answer.error is not None)
            refuse_compressed(upstream)
            streamed.set_status(upstream.status)
            streamed.headers.update(end_to_end_headers(upstream.headers, self.api_key))
            await streamed.prepare(request)
            tap, remaining = Tap(answer, hide_usage, self.api_key), MAX_ANSWER_BYTES
            async for received in upstream.content.iter_any():
                if (remaining := remaining - len(received)) < 0:
                    raise ValueError(TOO_LONG)
                if events := tap.feed(received, now_s()):
                    await streamed.write(events)
            if rest := tap.end():
                await streamed.write(rest)
            await streamed.write_eof()
            return streamed

    def _end_turn(
        self, turn: ActiveTurn, chat: JsonObject, answer: ForwardedAnswer, error: str | None
    ) -> None:
        finished_s = answer.last_byte_at_s if error is None else self.turns.now_s()
        reason: str | None = UNREADABLE
        try:
            turn.record, reason = self._measured(turn, chat, answer, finished_s, error), error
        finally:
            self.turns.end(turn, finished_s, reason)

    def _measured(
        self,
        turn: ActiveTurn,
        chat: JsonObject,
        answer: ForwardedAnswer,
        finished_s: float,
        error: str | None,
    ) -> TurnRecord:
        record, program = copy(turn.record), turn.started.program
        if error is None and self.counter is not None:
            _count(answer, chat, turn.prompt)
        kept = self.turns.programs.kept_tokens(program, turn.prompt, answer.prompt_tokens)
        measure(record, answer, answer.prompt_tokens, turn.sent_s, finished_s)
        record.kept_tokens, record.tools = max(kept, 0), tuple(answer.tools)
        record.system = _system(turn, answer)
        if error is None:
            if self.keeps_messages:
                repeated = program.prompt.shared(turn.prompt) if program.prompt else 0
                add_messages(record, chat, repeated, answer)
            self.turns.programs.record_answer(program, turn.prompt, answer)
        _redact(record, [key for key in answer.secrets if is_distinctive(key)])
        return record

    def _secrets(self, request: web.Request) -> tuple[str, ...]:
        """Return the keys that a server may repeat in its answer."""
        keys = (request.headers.get(name, "").rpartition(" ")[2] for name in KEY_HEADERS)
        return (*known_keys(self.api_key), *(key for key in keys if len(key) >= MIN_CHARS))

    def _headers(
        self, request: web.Request, left_out: frozenset[str] = HOP_BY_HOP
    ) -> dict[str, str]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in left_out}
        if self.strips_client_key or self.api_key is not None:
            headers = {k: v for k, v in headers.items() if k.lower() not in KEY_HEADERS}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers


def _cancelled(turn: ActiveTurn, answer: ForwardedAnswer) -> str | None:
    """Return the error of a turn that was cancelled, or whose client has left. What the server had
    sent before the client left, a whole answer or an error, counts."""
    if turn.cancelled == CLIENT_DISCONNECTED and (answer.is_whole or answer.error is not None):
        return answer.error
    return turn.cancelled


def _is_forwarded(method: str, path: str) -> bool:
    kind, *rest = path.split("/")
    if any(part in ("", ".", "..") for part in rest):
        return False
    return (method, kind) == ("GET", "models") or (method == "POST" and path in FORWARDED)


def _count(answer: ForwardedAnswer, chat: JsonObject, prompt: DigestedPrompt) -> None:
    """Count the tokens of a turn that the server has not reported. Images count as none."""
    if prompt.in_tokens:
        answer.usage = {"prompt_tokens": prompt.ends[-1], **answer.usage}
    tools = chat.get("tools")
    texts = [json_text(tools) if tools else "", plain_text(chat.get("prompt"))]
    for message in map(mapping, items(chat.get("messages"))):
        texts += plain_text(message.get("content")), *call_texts(message)
    answer.count(texts)


def _redact(record: TurnRecord, keys: Sequence[str]) -> None:
    if not keys:
        return
    record.tools = tuple(redact(name, keys) for name in record.tools or ())
    if record.messages is not UNSET:
        record.messages = [ChatMessage(m.role, redact(m.content, keys)) for m in record.messages]
    if record.answer is not UNSET:
        record.answer = redact(record.answer, keys)
    if isinstance(record.command, str):
        record.command = redact(record.command, keys)


def _system(turn: ActiveTurn, answer: ForwardedAnswer) -> PromptPrefix | UnsetType:
    """Return the system prompt of a first turn, which programs of a trace share.

    Its tokens are estimated from its share of the prompt's characters.
    """
    prompt = turn.prompt
    if turn.started.turn or not prompt.system:
        return UNSET
    tokens = int(answer.prompt_tokens * prompt.system / prompt.ends[-1])
    return PromptPrefix(f"system:{prompt.system_digest.hex()[:12]}", tokens)


def _reason(failure: BaseException, secrets: Sequence[str]) -> str:
    return shortened(redact(str(failure), secrets) or type(failure).__name__)
