"""Reserves a port of 127.0.0.1 for a server that is about to start."""

from __future__ import annotations

import socket

from servers.basics.errors import Unavailable


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
