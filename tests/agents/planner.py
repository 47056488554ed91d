"""A chat server whose answers are the task's own: a task is a JSON list of commands, and the n-th
answer calls `bash` with the n-th of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


async def models(_request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m", "max_model_len": 100_000}]})


async def chat(request: web.Request) -> web.Response:
    messages = (await request.json())["messages"]
    task = next(message for message in messages if message["role"] == "user")
    plan = json.loads(task["content"])
    place = sum(message["role"] == "assistant" for message in messages)
    answer = {"role": "assistant", "content": "done"}
    if place < len(plan):
        function = {"name": "bash", "arguments": json.dumps({"command": plan[place]})}
        calls = [{"id": f"c{place}", "type": "function", "function": function}]
        answer = {"role": "assistant", "content": None, "tool_calls": calls}
    usage = {"prompt_tokens": 100 + 20 * place, "completion_tokens": 10}
    return web.json_response({"choices": [{"index": 0, "message": answer}], "usage": usage})


@contextmanager
def planner() -> Iterator[str]:
    """Its URL; in a thread of its own, since `bench` is another process."""
    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    with threaded(app) as url:
        yield url


@contextmanager
def threaded(app: web.Application) -> Iterator[str]:
    loop, url = asyncio.new_event_loop(), ""
    up, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        nonlocal url
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        up.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    up.wait(10)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
