"""A port of 127.0.0.1 that nobody else gets before a server of ours does."""

from __future__ import annotations

import socket

from servers.errors import PortTaken


class Port:
    """Bound, not listening: Linux lets a second socket with SO_REUSEADDR, which vLLM and LMCache
    set, listen on it."""

    def __init__(self, number: int | None = None) -> None:
        """None: a free one."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", number or 0))
        except OSError as error:
            self._socket.close()
            raise PortTaken(
                f"--port {number}: {error.strerror}; leave it out to have a free one found"
            ) from None
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
