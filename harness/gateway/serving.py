"""A gateway on a port of this machine."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web

from harness.gateway.proxy import Gateway

LOOPBACK = "127.0.0.1"
DRAIN_S = 1.0
"""For answers under way when it is closed."""
MOST_WAITING = 4096
"""Connections that are not yet accepted: of more the kernel drops some, to be tried again seconds
later. Linux' own limit; aiohttp's is 128."""


def tune_garbage_collector() -> None:
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
    gateway: Gateway, host: str = LOOPBACK, port: int = 0
) -> AsyncIterator[str]:
    """Yields its base URL, by the machine's name where it listens on all addresses. Port 0: a free
    one. Raises an OSError where the port is taken."""
    async with gateway:
        runner = web.AppRunner(
            gateway.app(), access_log=None, handler_cancellation=True, shutdown_timeout=DRAIN_S
        )
        await runner.setup()
        gateway.runner = runner
        try:
            tcp = web.TCPSite(runner, host, port, reuse_address=True, backlog=MOST_WAITING)
            try:
                await tcp.start()
            except OSError as error:
                why = os.strerror(error.errno or 0).lower()
                raise OSError(
                    f"--listen {host} --port {port}: {why}; give another, --port 0 for a free one"
                ) from None
            everywhere = ipaddress.ip_address(host).is_unspecified
            name = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
            yield f"http://{name}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@asynccontextmanager
async def own_socket(gateway: Gateway, path: Path, program_id: str) -> AsyncIterator[None]:
    """A way to a gateway that is served, for one program alone: whatever comes by this unix socket
    is from it. Its owner and root may use it. Raises an OSError where it is no place to listen."""
    with _near(path) as near:
        site = web.UnixSite(gateway.runner, near, backlog=MOST_WAITING)
        await site.start()
        try:
            path.chmod(0o600)
            gateway.access.only[str(near)] = program_id
            yield
        finally:
            gateway.access.only.pop(str(near), None)
            await site.stop()
            path.unlink(missing_ok=True)
