"""Requests of agents in, the same requests to a server, its answers through, and a line per turn.

A turn's line is that of docs/run-folder.md, as far as a client of the server can know. What the
server answers passes unchanged, errors too, byte by byte as it comes. A client that goes away takes
its request with it, so that the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from harness.completion import as_client_sees, shortened
from harness.course import Line
from harness.gateway.answers import Answer, Tap
from harness.gateway.conversations import Prompt, prompt_of
from harness.gateway.identity import OURS, BadId, said
from harness.gateway.programs import Begun, Programs
from harness.gateway.refusals import refusal
from harness.live import authorization, client_session

MOST_BODY_BYTES = 32 << 20
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
COMPLETIONS = ("chat/completions", "completions")


@dataclass(frozen=True, slots=True)
class Backend:
    """A server behind the gateway."""

    url: str
    """Without `/v1`."""
    tagged: bool
    """It takes `vllm_xargs`."""


@dataclass(slots=True)
class _Turn:
    """A completion under way."""

    begun: Begun
    prompt: Prompt
    sent_s: float
    replica: int
    answer: Answer = field(default_factory=Answer)
    streamed: web.StreamResponse | None = None
    """To the client, once it has begun."""


class Gateway:
    """`async with` it: it holds the connections to its servers."""

    def __init__(
        self,
        backends: Sequence[Backend],
        on_turn: Callable[[Line], None],
        api_key: str | None = None,
    ) -> None:
        self._backends = backends
        self._on_turn = on_turn
        self._api_key = api_key
        self._programs = Programs()
        self._replicas: dict[str, int] = {}
        """By job."""

    async def __aenter__(self) -> Gateway:
        self._clock = asyncio.get_running_loop().time
        self.origin_s = self._clock()
        self._session = client_session(auto_decompress=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[_as_openai])
        for prefix in ("", "/programs/{program}"):
            app.router.add_route("*", prefix + "/v1/{path:.+}", self._handle)
        app.router.add_delete("/programs/{program}", self._end)
        app.router.add_get("/health", _healthy)
        return app

    async def end_all(self) -> None:
        """Whoever asked is gone."""
        for program_id in self._programs.ids():
            await self.end(program_id)

    async def end(self, program_id: str) -> None:
        """Its process is gone: its pins may go, and the next turn under this name is another
        program's first."""
        program = self._programs.ended(program_id)
        if program is None:
            return
        backend = self._backends[self._replica(program.job_id)]
        if program.job_id == program.id:
            self._replicas.pop(program.id, None)
        if backend.tagged and program.model is not None:
            body = {"model": program.model, "prompt": [0], "max_tokens": 1}
            told = orjson.dumps(body | {"vllm_xargs": {"ended": program_id}})
            headers = {"Content-Type": "application/json", **authorization(self._api_key)}
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with self._session.post(
                    f"{backend.url}/v1/completions", data=told, headers=headers
                ) as answer:
                    await answer.read()

    async def _end(self, request: web.Request) -> web.Response:
        await self.end(request.match_info["program"])
        return web.Response(status=204)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if request.method == "POST" and path in COMPLETIONS:
            return await self._complete(request, path)
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
        except (aiohttp.ClientError, OSError, TimeoutError) as failure:
            return refusal(502, f"no answer from {url}: {_reason(failure)}", "api_error")

    async def _complete(self, request: web.Request, path: str) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as bad:
            return refusal(400, f"We could not parse the JSON body of your request: {bad}")
        if not isinstance(body, dict):
            return refusal(400, "The JSON body of your request must be an object.")
        try:
            who = said(request.match_info.get("program"), request.headers, body)
        except BadId as bad:
            return refusal(400, str(bad))
        prompt = prompt_of(body)
        begun = self._programs.begin(who, prompt, self._now_s())
        begun.program.model = body.get("model")
        turn = _Turn(begun, prompt, self._now_s(), self._replica(begun.program.job_id))
        error: str | None = "the client went away"
        try:
            response = await self._forward(request, path, body, raw, turn)
            error = turn.answer.error or (None if turn.answer.whole else "the stream was cut")
            return response
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as failure:
            error = f"no answer from the server: {_reason(failure)}"
            if turn.streamed is None:
                return refusal(502, error, "api_error")
            if request.transport is not None:  # a cut stream is cut for the client too
                request.transport.abort()
            return turn.streamed
        finally:
            self._over(turn, error)

    async def _forward(
        self, request: web.Request, path: str, body: dict[str, Any], raw: bytes, turn: _Turn
    ) -> web.StreamResponse:
        backend = self._backends[turn.replica]
        hide_usage, data = _rewritten(body, raw, turn.begun if backend.tagged else None)
        headers = self._headers(request)
        async with self._session.post(
            f"{backend.url}/v1/{path}", data=data, headers=headers, allow_redirects=False
        ) as answer:
            if answer.content_type != "text/event-stream":
                response = await _whole(answer)
                turn.answer.read(bytes(response.body or b""), self._now_s())  # type: ignore[arg-type]
                return response
            streamed = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            await streamed.prepare(request)
            turn.streamed = streamed
            tap = Tap(turn.answer, hide_usage)
            async for received in answer.content.iter_any():
                if passed := tap.take(received, self._now_s()):
                    await streamed.write(passed)
            if rest := tap.end():
                await streamed.write(rest)
            await streamed.write_eof()
            return streamed

    def _over(self, turn: _Turn, error: str | None) -> None:
        begun, answer, now_s = turn.begun, turn.answer, self._now_s()
        program = begun.program
        finished_s = answer.last_byte_at_s if error is None else None
        finished_s = now_s if finished_s is None else finished_s
        kept = self._programs.kept_tokens(program, turn.prompt, answer.prompt_tokens)
        if error is None:
            self._programs.succeeded(begun, turn.prompt, answer, finished_s)
        else:
            self._programs.failed(begun, finished_s)
        self._on_turn(_line(turn, finished_s, max(kept, 0), error))

    def _replica(self, job_id: str) -> int:
        """Of a new job, the one with the fewest jobs; it stays there, where its KV is."""
        if job_id not in self._replicas:
            counts = [0] * len(self._backends)
            for replica in self._replicas.values():
                counts[replica] += 1
            self._replicas[job_id] = counts.index(min(counts))
        return self._replicas[job_id]

    def _headers(self, request: web.Request) -> dict[str, str]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers

    def _now_s(self) -> float:
        return self._clock() - self.origin_s


def _rewritten(body: dict[str, Any], raw: bytes, tag: Begun | None) -> tuple[bool, bytes]:
    """Whether we ask for the count of tokens where the client did not, and the body to send: the
    client's own bytes as far as nothing has to be added or taken out."""
    added: dict[str, Any] = {}
    options = body.get("stream_options")
    asked = isinstance(options, Mapping) and bool(options.get("include_usage"))
    hide_usage = body.get("stream") is True and not asked
    if hide_usage:
        kept = dict(options) if isinstance(options, Mapping) else {}
        added["stream_options"] = {**kept, "include_usage": True}
    if tag is not None:
        xargs = body.get("vllm_xargs")
        kept = dict(xargs) if isinstance(xargs, Mapping) else {}
        added["vllm_xargs"] = {**kept, "program_id": tag.program.id, "turn": tag.turn}
    ours = [name for name in OURS if name in body]
    if not added and not ours:
        return hide_usage, raw
    if ours or added.keys() & body.keys() or not body:
        return hide_usage, orjson.dumps({k: v for k, v in body.items() if k not in ours} | added)
    # A long conversation is not written anew for the sake of two fields at its end.
    return hide_usage, raw.rstrip()[:-1] + b"," + orjson.dumps(added)[1:]


def _line(turn: _Turn, finished_s: float, kept_tokens: int, error: str | None) -> Line:
    begun, answer = turn.begun, turn.answer
    line = {
        "program_id": begun.program.id,
        "turn": begun.turn,
        "replica": turn.replica,
        "job_id": begun.program.job_id,
        "scheduled_at_s": turn.sent_s,
        **as_client_sees(
            turn.sent_s,
            answer.first_token_at_s,
            finished_s,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            queue_s=answer.queue_s,
        ),
        "kept_tokens": kept_tokens,
        "tools": list(answer.tools),
        "gap_s": begun.gap_s,
        "gap_provenance": "measured" if begun.turn else None,
        "wait_s": 0.0,
        "error": error,
    }
    return line if begun.turn else line | {"system": _system(turn)}


def _system(turn: _Turn) -> Line | None:
    """What a trace shares between programs: the system prompt, its tokens by its share of the
    prompt's characters."""
    prompt = turn.prompt
    if not prompt.system:
        return None
    tokens = int(turn.answer.prompt_tokens * prompt.system / prompt.ends[-1])
    return {"id": f"system:{prompt.digests[prompt.least - 2].hex()[:12]}", "tokens": tokens}


async def _whole(answer: aiohttp.ClientResponse) -> web.Response:
    body = await answer.read()
    return web.Response(status=answer.status, body=body, headers=_passed_on(answer.headers))


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in HOP_BY_HOP}


def _reason(failure: BaseException) -> str:
    return shortened(str(failure) or type(failure).__name__)


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


@web.middleware
async def _as_openai(request: web.Request, handler: Any) -> web.StreamResponse:
    """What aiohttp itself refuses, in the shape that OpenAI's clients read."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except web.HTTPException as refused:
        if refused.status == 404:
            told = f"Invalid URL ({request.method} {request.path})"
        elif refused.status == 413:
            told = f"The body of your request is larger than {MOST_BODY_BYTES >> 20} MiB."
        else:
            told = refused.reason
        return refusal(refused.status, told)
