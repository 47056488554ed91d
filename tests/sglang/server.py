"""A small server that answers as SGLang 0.5.23 does, according to its code.

Taken from there: paths, statuses and error bodies (`srt/entrypoints/http_server.py`), the events of
a stream (`srt/managers/tokenizer_manager.py`), unknown sampling parameters (`api/v1/api_types.py`),
when a flush is refused (`managers/scheduler_components/flush_wrapper.py`) and names of metrics
(`srt/observability/metrics_collector.py`). Of the radix cache it only knows equal prefixes.

`python -m tests.sglang.server FLAGS` serves with the flags of `sglang.launch_server`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
from aiohttp import web

KV_TOKENS, CONTEXT, VERSION = 65536, 4096, "0.5.23"
FAILING = "lof"
"""A scheduler with which the server does not start."""
SAMPLING = {"max_new_tokens", "min_new_tokens", "ignore_eos", "temperature", "top_p", "stop"}
"""Some of the sampling parameters that it knows."""


@dataclass
class Sglang:
    model: str = "m"
    incremental: bool = True
    """`--incremental-streaming-output`."""
    radix_cache: bool = True
    schedule: str = "fcfs"
    api_key: str | None = None
    chunk_tokens: int = 3
    chunk_s: float = 0.0
    aborts: bool = False
    """Whether the scheduler aborts each request after its first tokens."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of turns, in order of arrival."""
    headers: list[dict[str, str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    flushes: list[bool] = field(default_factory=list)
    """Whether each flush succeeded."""
    running: int = 0
    cache: list[list[int]] = field(default_factory=list)
    next_id: int = 1000

    async def models(self, _request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "owned_by": "sglang", "root": self.model}
        return web.json_response({"object": "list", "data": [{**card, "max_model_len": CONTEXT}]})

    async def server_info(self, _request: web.Request) -> web.Response:
        resolved = {"page_size": 1, "disable_radix_cache": not self.radix_cache}
        resolved |= {"schedule_policy": self.schedule, "max_total_num_tokens": KV_TOKENS}
        return web.json_response({**resolved, "version": VERSION, "internal_states": [{}]})

    async def metrics(self, _request: web.Request) -> web.Response:
        labels = f'{{engine_type="unified",model_name="{self.model}",tp_rank="0"}}'
        values = {"num_running_reqs": self.running, "num_queue_reqs": 2, "token_usage": 0.25}
        lines = [f"# HELP sglang:{name} …\nsglang:{name}{labels} {values[name]}" for name in values]
        return web.Response(text="\n".join(lines) + "\n")

    async def flush(self, _request: web.Request) -> web.Response:
        self.flushes.append(self.running == 0)
        if self.running:
            return web.Response(text="Flush cache failed.\n", status=400)
        self.cache.clear()
        return web.Response(text="Cache flushed.\nPlease check backend logs for more details. ")

    async def close_session(self, request: web.Request) -> web.Response:
        self.ended.append(orjson.loads(await request.read())["session_id"])
        return web.Response()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        parameters = body["sampling_params"]
        if unknown := parameters.keys() - SAMPLING:
            error = f"unknown field `{min(unknown)}`, expected one of …"
            return web.json_response({"error": error}, status=400)
        self.headers.append(dict(request.headers))
        self.bodies.append(body)
        prompt, length = body["input_ids"], parameters["max_new_tokens"]
        if len(prompt) + length > CONTEXT:
            message = (
                f"Requested token count exceeds the model's maximum context length of {CONTEXT}"
            )
            error = {"message": message, "type": "invalid_request_error", "code": 400}
            return await self._stream(request, [{"error": {**error, "retryable": False}}])
        return await self._stream(request, self._events(prompt, length))

    def _events(self, prompt: list[int], length: int) -> list[dict[str, Any]]:
        first, self.next_id = self.next_id, self.next_id + length
        ids = list(range(first, first + length))
        cached = max((common(prompt[:-1], known) for known in self.cache), default=0)
        if self.radix_cache:
            self.cache.append([*prompt, *ids[:-1]])
        events = []
        for start in range(0, length, self.chunk_tokens):
            end = min(start + self.chunk_tokens, length)
            reason: dict[str, Any] | None = None
            if end == length:
                reason = {"type": "length", "length": length}
            if self.aborts:
                reason = {"type": "abort", "message": "out of memory", "status_code": 500}
            meta = {"id": f"{first:x}", "finish_reason": reason, "prompt_tokens": len(prompt)}
            meta |= {"weight_version": "default", "num_retractions": 0, "queue_time": 0.125}
            meta |= {"completion_tokens": end, "cached_tokens": cached, "reasoning_tokens": 0}
            sent = ids[start:end] if self.incremental else ids[:end]
            events.append({"text": "x", "output_ids": sent, "meta_info": meta})
        return events[:1] if self.aborts else events

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer texts: chats, and prompts of one text. It has a token for each word."""
        body = orjson.loads(await request.read())
        self.headers.append(dict(request.headers))
        self.bodies.append(body)
        chat = "messages" in body
        words = " ".join(m["content"] for m in body["messages"]) if chat else body["prompt"]
        content = {"delta": {"content": "x"}} if chat else {"text": "x"}
        limit = body.get("max_completion_tokens") or body["max_tokens"]
        events: list[dict[str, Any]] = [
            {"id": "c", "choices": [{"index": 0, **content}]} for _ in range(limit)
        ]
        usage = {"prompt_tokens": len(words.split()), "completion_tokens": limit}
        details = {"prompt_tokens_details": {"cached_tokens": 1}}  # `--enable-cache-report`
        return await self._stream(
            request, [*events, {"choices": [], "usage": {**usage, **details}}]
        )

    async def _stream(
        self, request: web.Request, events: Sequence[dict[str, Any]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        self.running += 1
        try:
            for event in events:
                await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
                await asyncio.sleep(self.chunk_s)
            await response.write(b"data: [DONE]\n\n")
        finally:
            self.running -= 1
        return response

    @web.middleware
    async def authenticate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        if self.api_key is not None and given != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answered: web.StreamResponse = await handler(request)
        return answered


async def health(_request: web.Request) -> web.Response:
    return web.Response()


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    pairs = zip(a, b, strict=False)
    return next((k for k, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def application(server: Sglang) -> web.Application:
    app = web.Application(client_max_size=1 << 30, middlewares=[server.authenticate])
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/server_info", server.server_info)
    app.router.add_get("/metrics", server.metrics)
    app.router.add_post("/flush_cache", server.flush)
    app.router.add_post("/close_session", server.close_session)
    app.router.add_post("/generate", server.generate)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/v1/chat/completions", server.completions)
    return app


@asynccontextmanager
async def serving(server: Sglang) -> AsyncIterator[str]:
    """Serve on loopback; yield the base URL."""
    runner = web.AppRunner(application(server), access_log=None, shutdown_timeout=0)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await runner.cleanup()


def main(flags: Sequence[str]) -> None:
    given = dict(pairwise(flags))
    if given["--schedule-policy"] == FAILING:
        print("[2026-11-24 06:00:00 TP0] Scheduler hit an exception: Traceback (most recent …):")
        print("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
        print("[2026-11-24 06:00:01] Received sigquit from a child process.", flush=True)
        sys.exit(1)
    server = Sglang(
        model=given["--served-model-name"],
        incremental="--incremental-streaming-output" in flags,
        radix_cache="--disable-radix-cache" not in flags,
        schedule=given["--schedule-policy"],
    )
    host, port = given["--host"], int(given["--port"])
    web.run_app(application(server), host=host, port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(sys.argv[1:])
