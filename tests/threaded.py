"""Run a server in a separate thread, for tests in which `bench` is another process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager


@contextmanager
def threaded(serving: AbstractAsyncContextManager[str]) -> Iterator[str]:
    """Run `serving` in a thread and yield its URL."""
    loop, url = asyncio.new_event_loop(), ""
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        nonlocal url
        async with serving as url:
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        for _ in range(3000):
            if started.wait(0.1) or not thread.is_alive():
                break
        assert started.is_set(), "it does not start"
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
