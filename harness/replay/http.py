"""How an OpenAI-compatible server is asked: many long answers at once, each read as it comes.

In: a body, an `Answer` to fill. Out: the answer filled, or why there is none, in one line. Times
are seconds on the caller's clock.
"""

from __future__ import annotations

import io
import os
import resource
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import aiohttp

from harness.redact import redact, secrets_of
from harness.replay.completion import Answer, error_message, shortened
from servers.errors import TurnFailed

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


def known_keys(key: str | None) -> tuple[str, ...]:
    """That no message may tell: the one that we send, and those of the environment."""
    return (*secrets_of(os.environ), *([key] if key else ()))


def authorization(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


class _Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A key is for the server that the user named: a redirect is an error, and not followed."""


_OPENER = urllib.request.build_opener(_Stays)


def fetched(url: str, within_s: float, most_bytes: int) -> bytes:
    """With the user's key. Raises an OSError (for other answers than 200 an HTTPError), an
    HTTPException or a ValueError."""
    request = urllib.request.Request(url, headers=authorization(api_key()))  # noqa: S310
    try:
        with _OPENER.open(request, timeout=within_s) as answer:
            found: bytes = answer.read(most_bytes)
            return found
    except urllib.error.HTTPError as error:
        error.close()
        raise


def client_session(**options: Any) -> aiohttp.ClientSession:
    """For thousands of long answers at once; `options` are aiohttp's own. Nothing is unpacked: what
    is a kilobyte packed may be a megabyte."""
    plain = {"Accept-Encoding": "identity"}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_CONNECTION_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers=plain | options.pop("headers", {}),
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
            told = error_message(body_start, answer.secrets)
            hint = f"; a key is taken from {API_KEY}" if response.status == 401 else ""
            raise TurnFailed(f"the server answered {response.status}: {told}{hint}")
        if response.content_type != "text/event-stream":
            raise TurnFailed(f"the server answered {response.content_type}, not a stream")
        if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise TurnFailed(f"the server packs its stream ({shortened(packed)}), unasked")
        body.truncate(0)  # it is sent: a long prompt need not stay for the answer
        async for received in response.content.iter_any():
            answer.take(received, now_s())


def reason(
    failure: Exception, url: str, answer: Answer, turn_timeout_s: float | None = None
) -> str:
    so_far = f"{len(answer.ids)} of the answer's tokens had come"
    match failure:
        case TurnFailed():
            return redact(str(failure), answer.secrets)
        case aiohttp.ConnectionTimeoutError():
            return f"no connection to {url} within {CONNECT_S:g} s"
        case TimeoutError() if turn_timeout_s is not None:
            return f"not over within {turn_timeout_s:g} s; {so_far}"
        case aiohttp.ClientConnectorError():
            why = os.strerror(failure.os_error.errno or 0)
            return f"cannot connect to {url}: {why.lower()}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | OSError():
            return f"the connection was lost; {so_far}"
    told = redact(f"{type(failure).__name__}: {failure}", answer.secrets)
    return shortened(f"{told}; {so_far}")
