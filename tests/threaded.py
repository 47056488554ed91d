"""A server in a thread of its own, for tests in which `bench` is another process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager


@contextmanager
def threaded(serving: AbstractAsyncContextManager[str]) -> Iterator[str]:
    """Its URL, which `serving` yields."""
    loop, url = asyncio.new_event_loop(), ""
    up, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        nonlocal url
        async with serving as url:
            up.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    up.wait(10)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
