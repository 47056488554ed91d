"""HTTP requests to servers that we started on 127.0.0.1.

They connect directly, whatever proxy the environment names.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from contextlib import closing

LOST = (OSError, http.client.HTTPException)
"""What `request` raises if there is no complete answer."""


def request(
    port: int,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> tuple[int, bytes]:
    """Returns the status and the body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
