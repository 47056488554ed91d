"""Serves a gateway on a TCP port or on Unix sockets of this machine."""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from harness.console import print_message
from harness.gateway.proxy import Gateway

LOOPBACK = "127.0.0.1"
DRAIN_S = 1.0
"""Time for active requests to finish when the gateway is closed."""
LISTEN_BACKLOG = 4096
"""Most connections that wait to be accepted. The kernel drops further ones, and clients retry
seconds later. 4096 is the maximum on Linux; aiohttp's default is 128."""

HEAD_TIMEOUT_S = 65.0
"""Time for the headers of a request to arrive, since the connection's start or its last response.
Longer than the 60 s for which nginx keeps idle connections to a server."""


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether to log an error of aiohttp's server. For malformed HTTP it prints one line
    instead, without the request's content, which may include a key."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
        return True
    print_message(f"a client sent malformed HTTP ({type(error).__name__})")
    return False


LOGGER = logging.getLogger(__name__)
LOGGER.addFilter(_is_unexpected)


def tune_garbage_collector() -> None:
    """Make garbage collections rare and short, because each one delays all streams.

    All existing objects are excluded from collection. Use it in processes that only run a gateway.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@contextmanager
def _short_path(path: Path) -> Iterator[Path]:
    """Yield a short path to the same file: a socket's address has at most 108 bytes (unix(7))."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{folder}", path.name)
    finally:
        os.close(folder)


@asynccontextmanager
async def serve_gateway(
    gateway: Gateway, host: str = LOOPBACK, port: int = 0
) -> AsyncIterator[str]:
    """Yield the base URL, with the machine's name if the gateway listens on all addresses.

    Port 0 chooses a free port. Raises an OSError if the port is in use.
    """
    async with gateway:
        runner = web.AppRunner(
            gateway.app(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=DRAIN_S,
            auto_decompress=False,  # `read_body` refuses compressed bodies
            keepalive_timeout=HEAD_TIMEOUT_S,
            logger=LOGGER,
        )
        await runner.setup()
        gateway.runner = runner
        try:
            tcp = web.TCPSite(runner, host, port, reuse_address=True, backlog=LISTEN_BACKLOG)
            try:
                await tcp.start()
            except OSError as error:
                reason = os.strerror(error.errno or 0).lower()
                raise OSError(
                    f"--listen {host} --port {port}: {reason}; give another port, or 0 for any"
                ) from None
            everywhere = ipaddress.ip_address(host).is_unspecified
            name = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
            yield f"http://{name}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@asynccontextmanager
async def program_socket(gateway: Gateway, path: Path, program_id: str) -> AsyncIterator[None]:
    """Open a Unix socket of a running gateway, over which requests come from this program only.

    Only the socket's owner and root may use it. Raises OSError if the path cannot be a socket.
    """
    with _short_path(path) as short:
        site = web.UnixSite(gateway.runner, short, backlog=LISTEN_BACKLOG)
        await site.start()
        try:
            path.chmod(0o600)
            gateway.access.programs_by_socket[str(short)] = program_id
            yield
        finally:
            gateway.access.programs_by_socket.pop(str(short), None)
            await site.stop()
            path.unlink(missing_ok=True)
