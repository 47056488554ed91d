"""A chat server that follows the task: a task is a JSON list of commands, and the n-th answer calls
`bash` with the n-th command."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from tests.loopback import on_loopback
from tests.threaded import threaded


async def models(_request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m", "max_model_len": 100_000}]})


async def chat(request: web.Request) -> web.Response:
    messages = (await request.json())["messages"]
    task = next(message for message in messages if message["role"] == "user")
    plan = json.loads(task["content"])
    index = sum(message["role"] == "assistant" for message in messages)
    answer = {"role": "assistant", "content": "done"}
    if index < len(plan):
        function = {"name": "bash", "arguments": json.dumps({"command": plan[index]})}
        calls = [{"id": f"c{index}", "type": "function", "function": function}]
        answer = {"role": "assistant", "content": None, "tool_calls": calls}
    usage = {"prompt_tokens": 100 + 20 * index, "completion_tokens": 10}
    return web.json_response({"choices": [{"index": 0, "message": answer}], "usage": usage})


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    async with on_loopback(app) as url:
        yield url


@contextmanager
def planner() -> Iterator[str]:
    """Serve in a separate thread, since `bench` is another process; yield the URL."""
    with threaded(serving()) as url:
        yield url
