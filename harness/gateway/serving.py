"""A gateway on a port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from harness.gateway.proxy import Gateway

LOOPBACK = "127.0.0.1"
DRAIN_S = 1.0
"""For answers under way when it is closed."""


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
                await web.TCPSite(runner, host, port, reuse_address=True).start()
                bound = runner.addresses[0][1]
                if socket is not None:
                    await web.UnixSite(runner, socket).start()
                    left.callback(socket.unlink, missing_ok=True)
                    socket.chmod(0o666)
                yield f"http://{host}:{bound}"
            finally:
                await runner.cleanup()
