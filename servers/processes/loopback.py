"""Sends HTTP requests to servers on 127.0.0.1, without the proxy that the environment may set."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from contextlib import closing

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
