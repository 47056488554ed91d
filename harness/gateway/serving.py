"""A gateway on a port of this machine."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web

from harness.gateway.proxy import Gateway

LOOPBACK = "127.0.0.1"
DRAIN_S = 1.0
"""For answers under way when it is closed."""
MOST_WAITING = 4096
"""Connections that are not yet accepted: of more the kernel drops some, to be tried again seconds
later. Linux' own limit; aiohttp's is 128."""


def pause_seldom() -> None:
    """For a process that does little else than this: a search for garbage holds up all streams, so
    what is loaded by now is left out of it, and it comes seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@contextmanager
def _near(path: Path) -> Iterator[Path]:
    """A short name of it: a socket's address has 108 bytes (unix(7)), run folders lie deep."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{folder}", path.name)
    finally:
        os.close(folder)


@asynccontextmanager
async def serve_gateway(
    gateway: Gateway, host: str = LOOPBACK, port: int = 0, socket: Path | None = None
) -> AsyncIterator[str]:
    """Yields its base URL. Port 0: a free one. `socket`: a path to listen at too, for anyone who
    gets into its folder. Raises an OSError where port or path is taken or no place to listen."""
    async with gateway:
        runner = web.AppRunner(
            gateway.app(), access_log=None, handler_cancellation=True, shutdown_timeout=DRAIN_S
        )
        await runner.setup()
        with ExitStack() as left:
            try:
                tcp = web.TCPSite(runner, host, port, reuse_address=True, backlog=MOST_WAITING)
                await tcp.start()
                bound = runner.addresses[0][1]
                if socket is not None:
                    near = left.enter_context(_near(socket))
                    await web.UnixSite(runner, near, backlog=MOST_WAITING).start()
                    left.callback(socket.unlink, missing_ok=True)
                    socket.chmod(0o666)
                yield f"http://{host}:{bound}"
            finally:
                await runner.cleanup()
