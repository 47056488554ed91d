"""How an OpenAI-compatible server is asked: many long answers at once, each read as it comes.

In: a body, an `Answer` to fill. Out: the answer filled, or why there is none, in one line. Times
are seconds on the caller's clock.
"""

from __future__ import annotations

import io
import os
import resource
from collections.abc import Callable
from typing import Any

import aiohttp

from harness.completion import Answer, TurnFailed, error_message, shortened

CONNECT_S = 10.0
KEEP_CONNECTION_S = 2.0
"""Less than servers keep idle connections (uvicorn, and so vLLM: 5 s), so that none is closed under
a turn that is just being sent."""
API_KEY = "TURNSTILE_API_KEY"
"""A variable, not an option: command lines are kept in run folders and shown in process lists."""
MOST_OPEN_FILES = 65536
ERROR_BODY_BYTES = 4096
FAILURES = (TurnFailed, aiohttp.ClientError, OSError, TimeoutError)
"""What `ask` raises, for `reason` to tell."""


def api_key() -> str | None:
    return os.environ.get(API_KEY, "").strip() or None


def authorization(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def client_session(**options: Any) -> aiohttp.ClientSession:
    """For thousands of long answers at once; `options` are aiohttp's own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_CONNECTION_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        **options,
    )


def allow_many_connections() -> None:
    """Each turn under way is an open file; the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    body: io.BytesIO,
    answer: Answer,
    now_s: Callable[[], float],
    headers: dict[str, str] | None = None,
) -> None:
    """Raises one of FAILURES. A whole stream may still be none of use: `answer.check`."""
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            body_start = await response.content.read(ERROR_BODY_BYTES)
            told = error_message(body_start, answer.secret)
            hint = f"; a key is taken from {API_KEY}" if response.status == 401 else ""
            raise TurnFailed(f"the server answered {response.status}: {told}{hint}")
        if response.content_type != "text/event-stream":
            raise TurnFailed(f"the server answered {response.content_type}, not a stream")
        body.truncate(0)  # it is sent: a long prompt need not stay for the answer
        async for received in response.content.iter_any():
            answer.take(received, now_s())


def reason(
    failure: Exception, url: str, answer: Answer, turn_timeout_s: float | None = None
) -> str:
    so_far = f"{len(answer.ids)} of the answer's tokens had come"
    match failure:
        case TurnFailed():
            return str(failure)
        case aiohttp.ConnectionTimeoutError():
            return f"no connection to {url} within {CONNECT_S:g} s"
        case TimeoutError() if turn_timeout_s is not None:
            return f"not over within {turn_timeout_s:g} s; {so_far}"
        case aiohttp.ClientConnectorError():
            why = os.strerror(failure.os_error.errno or 0)
            return f"cannot connect to {url}: {why.lower()}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | OSError():
            return f"the connection was lost; {so_far}"
    return shortened(f"{type(failure).__name__}: {failure}; {so_far}")
