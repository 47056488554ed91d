"""An OpenAI-like chat server behind a gateway, with fixed answers and one token per word.

`python -m tests.gateway.upstream` serves on a free port, which it prints, until it is terminated.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from harness.gateway import Gateway, serve_gateway
from harness.replay.identity import SESSION_ENDS, SessionEnd
from harness.replay.live_server import LiveServer
from servers.routers.runner import BuildRouter
from servers.routers.sticky import Sticky
from tests.lines import Line, into

TOOL_CALL = {
    "index": 0,
    "id": "c1",
    "type": "function",
    "function": {"name": "bash", "arguments": '{"command": "cd src && pytest -q"}'},
}


@dataclass
class Upstream:
    words: str = "all done here"
    """The answer; a stream has one chunk per word."""
    calls_tool: bool = False
    stream: bytes = b""
    """The events of an answer of the Messages or the Responses API."""
    whole: bytes = b""
    """The whole answer to a request without a stream, instead of a completion."""
    fault: str = ""
    chunk_s: float = 0.0
    stamps: bool = False
    """Each chunk contains its sending time and its request's arrival time (monotonic clock)."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    aborted: int = 0

    metrics: str = ""
    """The page at /metrics, which is missing if it is empty."""
    session_end: SessionEnd | None = None
    """A way to end a session that the server knows."""
    ended: list[str] = field(default_factory=list)
    """Sessions that were ended in that way."""

    async def page(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.metrics, status=200 if self.metrics else 404)

    async def end(self, request: web.Request) -> web.Response:
        end = self.session_end
        if end is None or request.path != end.path:
            raise web.HTTPNotFound
        self.ended.append((await request.json())[end.field])
        return web.Response()

    async def models(self, _request: web.Request) -> web.Response:
        models = [{"id": id, "owned_by": "vllm"} for id in ("m", "org/m")]
        return web.json_response({"object": "list", "data": models})

    async def model(self, _request: web.Request) -> web.Response:
        return web.json_response({"id": "served/by/id", "object": "model"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = orjson.loads(raw)
        self.raw.append(raw)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path_qs)
        if self.fault == "429":
            headers = {"Retry-After": "3"}
            return web.json_response(
                {"error": {"message": "slow down"}}, status=429, headers=headers
            )
        if self.fault == "401":
            message = f"Incorrect API key: {request.headers.get('Authorization')}"
            return web.json_response({"error": {"message": message}}, status=401)
        if self.fault == "engine error":
            message = f"failed for {request.headers.get('Authorization')}"
            event = orjson.dumps({"error": {"message": message}})
            return web.Response(body=b"data: " + event + b"\n\n", content_type="text/event-stream")
        if self.fault == "compressed":
            headers = {"Content-Encoding": "gzip", "Content-Type": "text/event-stream"}
            return web.Response(body=gzip.compress(self.words.encode()), headers=headers)
        answer = {"role": "assistant", "content": self.words}
        if self.calls_tool:
            answer = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
        if self.whole and not body.get("stream"):
            return web.Response(body=self.whole, content_type="application/json")
        if not body.get("stream"):
            completion = {"object": "chat.completion", "choices": [{"index": 0, "message": answer}]}
            usage = {} if self.fault == "no usage" else {"usage": self._usage(body)}
            return web.json_response(completion | usage)
        try:
            return await self._stream(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted += 1
            raise

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        arrived_s = time.monotonic()
        events = self._recorded() if self.stream and "completions" not in request.path else None
        for index, event in enumerate(events or self._events(body)):
            if self.stamps and event != b"[DONE]":
                event = orjson.dumps(
                    {**orjson.loads(event), "sent": time.monotonic(), "arrived": arrived_s}
                )
            if self.fault == "cut" and index == 2 and request.transport is not None:
                request.transport.abort()
                return response
            await response.write(event if events else b"data: " + event + b"\n\n")
            await asyncio.sleep(self.chunk_s)
        await response.write_eof()
        return response

    def _recorded(self) -> list[bytes]:
        return [event + b"\n\n" for event in self.stream.split(b"\n\n")[:-1]]

    def _events(self, body: dict[str, Any]) -> Iterator[bytes]:
        deltas: list[dict[str, Any]] = [{"content": f"{word} "} for word in self.words.split()]
        if self.calls_tool:
            deltas = [{"tool_calls": [TOOL_CALL]}]
        for delta in deltas:
            yield orjson.dumps({"choices": [{"index": 0, "delta": delta}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield orjson.dumps({"choices": [], "usage": self._usage(body)})
        yield b"[DONE]"

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = [m.get("content") for m in body.get("messages", ())] or [body.get("prompt")]
        prompt = sum(len(text.split()) for text in texts if isinstance(text, str))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": len(self.words.split()),
            "prompt_tokens_details": {"cached_tokens": 1},
        }


@asynccontextmanager
async def serving(upstream: Upstream) -> AsyncIterator[str]:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/v1/models", upstream.models)
    app.router.add_get("/v1/models/served/by/id", upstream.model)
    app.router.add_post("/v1/chat/completions", upstream.complete)
    app.router.add_post("/v1/completions", upstream.complete)
    app.router.add_post("/v1/embeddings", upstream.complete)
    app.router.add_post("/v1/messages", upstream.complete)
    app.router.add_post("/v1/responses", upstream.complete)
    app.router.add_get("/metrics", upstream.page)
    for end in SESSION_ENDS:
        app.router.add_post(end.path, upstream.end)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway_to(
    *upstreams: Upstream, tagged: bool = True, router: BuildRouter = Sticky, kv_tokens: int = 0
) -> AsyncIterator[tuple[str, list[Line]]]:
    """Yield the base URL of a gateway to these servers, and the records of finished turns."""
    lines: list[Line] = []
    urls = [serving(upstream) for upstream in upstreams]
    backends = [
        LiveServer(await url.__aenter__(), tagged=tagged, kv_tokens=kv_tokens) for url in urls
    ]
    try:
        async with serve_gateway(Gateway(backends, into(lines), router=router)) as base_url:
            yield base_url, lines
    finally:
        for url in urls:
            await url.__aexit__(None, None, None)


async def _main(chunk_s: float | None) -> None:
    upstream = Upstream(words="w " * 20, chunk_s=chunk_s or 0.0, stamps=chunk_s is not None)
    if upstream.stamps:
        gc.disable()  # benchmarks measure this server
    async with serving(upstream) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    arguments = sys.argv[1:]  # --stamps SECONDS: time between chunks with time stamps
    asyncio.run(_main(float(arguments[1]) if arguments else None))
