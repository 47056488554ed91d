"""Reserves a port of 127.0.0.1 for a server that is about to start, and sends it HTTP requests,
without the proxy that the environment may set."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from contextlib import closing

from servers.basics.errors import Unavailable

REQUEST_ERRORS = (OSError, http.client.HTTPException)
"""The errors that `request` raises if there is no complete response."""


def request(
    port: int,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> tuple[int, bytes]:
    """Return the status and the body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()


class Port:
    """A bound socket that does not listen.

    Linux lets a second socket with SO_REUSEADDR, which vLLM and LMCache set, listen on the same
    port, while other processes cannot get it.
    """

    def __init__(self, number: int | None = None) -> None:
        """Reserve port `number`, or any free port if it is None. Raises Unavailable."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", number or 0))
        except OSError as error:
            self._socket.close()
            if number is None:
                raise Unavailable(f"no port on 127.0.0.1 is free: {error.strerror}") from None
            raise Unavailable(
                f"--port {number}: {error.strerror}; omit --port to use any free port"
            ) from None
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
