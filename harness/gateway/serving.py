"""A gateway on a port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from harness.gateway.proxy import Gateway

LOOPBACK = "127.0.0.1"
DRAIN_S = 1.0
"""For answers under way when it is closed."""


@asynccontextmanager
async def serve_gateway(
    gateway: Gateway, host: str = LOOPBACK, port: int = 0
) -> AsyncIterator[str]:
    """Yields its base URL. Port 0: a free one. Raises an OSError where the port is taken."""
    async with gateway:
        runner = web.AppRunner(
            gateway.app(), access_log=None, handler_cancellation=True, shutdown_timeout=DRAIN_S
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, reuse_address=True)
            await site.start()
            bound = runner.addresses[0][1]
            yield f"http://{host}:{bound}"
        finally:
            await runner.cleanup()
