"""A small OpenAI-like server that stores requests, answers with fixed delays, and injects faults.

`python -m tests.live.server` serves on a free port, which it prints, until it is terminated.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

Turn = tuple[str, int]
SLOW_CHUNK_S = 3.0


@dataclass
class Server:
    model: str = "m"
    owned_by: str = "somebody"
    think_s: float = 0.0
    """Delay before the first chunk."""
    chunk_s: float = 0.0
    """Delay before each further chunk."""
    chunk_tokens: int = 3
    cached_tokens: int | None = 7
    reports_usage: bool = True
    """Whether chats have usage."""
    queue_ms: float | None = 0.25
    faults: dict[Turn, str] = field(default_factory=dict)
    full: dict[Turn, list[dict[str, str] | None]] = field(default_factory=dict)
    """Headers of the refusals of a turn by a full queue (503), before it is answered; None for a
    refusal in a stream, as vLLM 0.32 sends it."""
    prompts: dict[Turn, list[int]] = field(default_factory=dict)
    answers: dict[Turn, list[int]] = field(default_factory=dict)
    arrived_s: dict[Turn, float] = field(default_factory=dict)
    conversations: dict[Turn, list[dict[str, str]]] = field(default_factory=dict)
    """Messages of each turn in text mode."""
    salts: list[str | None] = field(default_factory=list)
    """`cache_salt` of each turn in text mode."""
    recorded: dict[Turn, list[int]] = field(default_factory=dict)
    """Tokens with which the answer of each turn in text mode was to begin."""
    replays: bool = True
    """Whether answers begin with those tokens."""
    reasons: bool = False
    """Whether the chat template begins an answer with a word that later prompts do not have."""
    vocabulary: dict[str, int] = field(default_factory=dict)
    arguments: dict[Turn, dict[str, Any]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    """Programs of which the end was reported by a request of its own."""
    headers: dict[Turn, dict[str, str]] = field(default_factory=dict)
    aborted: list[Turn] = field(default_factory=list)
    """Turns whose client disconnected."""
    stores: bool = True
    """Whether prompts and answers are stored."""
    open: int = 0
    max_open: int = 0
    _rng: random.Random = field(default_factory=lambda: random.Random(5))

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {"data": [{"id": self.model, "max_model_len": 4096, "owned_by": self.owned_by}]}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        """Return a token for each role and each word, and the role of an answer."""
        body = orjson.loads(await request.read())
        words = [w for m in body["messages"] for w in (m["role"], *m["content"].split())]
        words += ["assistant"] * body["add_generation_prompt"]
        if self.reasons and body["add_generation_prompt"]:
            words.append("<think>")
        return web.json_response({"tokens": [self.token(word) for word in words]})

    def token(self, word: str) -> int:
        return self.vocabulary.setdefault(word, len(self.vocabulary))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer in text mode: one token per word and, like most servers, no token ids."""
        body = orjson.loads(await request.read())
        turn = body["vllm_xargs"]["program_id"], body["vllm_xargs"]["turn"]
        self.conversations[turn] = body["messages"]
        self.salts.append(body.get("cache_salt"))
        words = sum(len(message["content"].split()) for message in body["messages"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        answer = body["vllm_xargs"].get("answer")
        if answer is not None:
            self.recorded[turn] = answer
        for index in range(body["max_tokens"]):
            choice: dict[str, Any] = {"index": 0, "delta": {"content": "x"}}
            if answer is not None:
                replays = self.replays and index < len(answer)
                choice["token_ids"] = [answer[index] if replays else 999_999]
            event = {"choices": [choice]}
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        usage = {"prompt_tokens": words, "completion_tokens": body["max_tokens"]}
        last = {"choices": [], "usage": usage if self.reports_usage else None}
        await response.write(b"data: " + orjson.dumps(last) + b"\n\ndata: [DONE]\n\n")
        return response

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if (ended := body["vllm_xargs"].get("ended")) is not None:
            self.ended.append(ended)
            return web.json_response({"choices": []})
        wrong = _wrong_shape(body, self.model)
        if wrong:
            return web.json_response({"error": {"message": f"odd request: {wrong}"}}, status=400)
        xargs = body["vllm_xargs"]
        turn = xargs["program_id"], xargs["turn"]
        self.arrived_s[turn] = asyncio.get_running_loop().time()
        self.arguments[turn] = xargs
        self.headers[turn] = dict(request.headers)
        ids = [self._rng.randrange(2**31) for _ in range(body["max_tokens"])]
        if self.stores:
            self.prompts[turn], self.answers[turn] = body["prompt"], ids
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            return await self._answer(request, turn, body["prompt"], ids)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted.append(turn)
            raise
        finally:
            self.open -= 1

    async def _answer(
        self, request: web.Request, turn: Turn, prompt: list[int], ids: list[int]
    ) -> web.StreamResponse:
        if refusals := self.full.get(turn):
            message = "The engine is currently busy. Please try again later."
            error = {"error": {"message": message, "code": 503}}
            if (headers := refusals.pop(0)) is not None:
                return web.json_response(error, status=503, headers=headers)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"data: " + orjson.dumps(error) + b"\n\ndata: [DONE]\n\n")
            return response
        fault = self.faults.get(turn, "")
        if fault == "500":
            return web.json_response({"error": {"message": "EngineDeadError " * 50}}, status=500)
        if fault == "401":
            message = f"Incorrect API key: {request.headers.get('Authorization', 'none')}"
            return web.json_response({"error": {"message": message}}, status=401)
        if fault == "503 html":
            return web.Response(text="<h1>out of\nservice</h1>", status=503)
        if fault == "no stream":
            return web.json_response({"choices": []})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if self.think_s or fault == "hangs":
            await asyncio.sleep(60 if fault == "hangs" else self.think_s)
        for event in self._events(prompt, ids, fault):
            if fault == "slow":
                await asyncio.sleep(SLOW_CHUNK_S)
            if event == "cut" and request.transport is not None:
                request.transport.abort()
                return response
            await response.write(b"data: " + _bytes(event) + b"\n\n")
            if self.chunk_s:
                await asyncio.sleep(self.chunk_s)
        await response.write_eof()
        return response

    def _events(self, prompt: list[int], ids: list[int], fault: str) -> list[Any]:
        if fault == "one short":
            ids = ids[:-1]
        n, echo = self.chunk_tokens, {"prompt_token_ids": prompt}
        chunks = [ids[i : i + n] for i in range(0, len(ids), n)]
        events: list[Any] = [
            {"choices": [{"index": 0, "text": "x", **(echo if not i else {}), "token_ids": chunk}]}
            for i, chunk in enumerate(chunks)
        ]
        if fault == "no ids":
            return [{"choices": [{"index": 0, "text": "x"}]}, "[DONE]"]
        if fault in ("cut", "ends early"):
            return [*events[:1], *(["cut"] if fault == "cut" else [])]
        if fault == "engine error":
            return [*events[:1], {"error": {"message": "CUDA error", "code": 500}}, "[DONE]"]
        if fault == "garbage":
            return [*events[:1], "{not json"]
        usage: dict[str, Any] = {
            "prompt_tokens": len(prompt) - (fault == "prompt cut short"),
            "completion_tokens": len(ids),
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        last: dict[str, Any] = {"choices": [], "usage": usage}
        if self.queue_ms is not None:
            last["metrics"] = {"queue_time_ms": self.queue_ms}
        return [*events, last, "[DONE]"]


def _wrong_shape(body: dict[str, Any], model: str) -> str | None:
    expected = {
        "model": model,
        "min_tokens": body["max_tokens"],
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    wrong = [f"{key} {body.get(key)}" for key, value in expected.items() if body.get(key) != value]
    return ", ".join(wrong) or None


def _bytes(event: Any) -> bytes:
    return event.encode() if isinstance(event, str) else orjson.dumps(event)


def application(server: Server) -> web.Application:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/health", server.health)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/tokenize", server.tokenize)
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/v1/completions", server.completions)
    return app


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    """Serve on loopback; yield the base URL."""
    app = application(server)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    site = web.SockSite(runner, listening, backlog=4096)
    await site.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await runner.cleanup()


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


async def _main() -> None:
    server = Server(stores=False, chunk_s=0.02)
    async with serving(server) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
