"""HTTP client for OpenAI-compatible servers. Reads many long streams concurrently.

In: a request's body and an `Answer` to fill. Out: the filled answer, or an error in one line. Times
in seconds on the caller's clock.
"""

from __future__ import annotations

import io
import os
import resource
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import aiohttp

from harness.replay.completion import PartialAnswer, error_message, refusal, shortened
from servers.basics.errors import TurnFailed
from servers.basics.redact import redact, secrets_of

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_TIMEOUT_S = 2.0
"""Shorter than the keep-alive timeout of servers (uvicorn and vLLM: 5 s). Otherwise a server might
close a connection while a turn is sent on it."""
API_KEY = "TURNSTILE_API_KEY"
"""An environment variable, because options appear in run folders and process lists."""
NO_PROXY = ("NO_PROXY", "no_proxy")
"""Environment variables with the hosts that clients reach without a proxy; `*`: all."""
MAX_OPEN_FILES = 65536
MAX_ERROR_BYTES = 4096
FAILURES = (TurnFailed, aiohttp.ClientError, OSError, TimeoutError)
"""Errors that `stream_completion` raises and `failure_reason` describes."""
RETRY_AFTER = "Retry-After"


def api_key() -> str | None:
    return os.environ.get(API_KEY, "").strip() or None


def known_keys(key: str | None) -> tuple[str, ...]:
    """Return the secrets that messages must not contain: `key`, and secrets of the environment."""
    return (*secrets_of(os.environ), *([key] if key else ()))


def authorization(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


class RequestFailed(OSError):
    """A request outside the replay got no answer, or one with the status of a failure or a
    redirect, whose first bytes are `body`."""

    def __init__(self, reason: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(reason)
        self.status, self.body = status, body


def client_session(
    headers: dict[str, str] | None = None, *, connection_per_request: bool = False
) -> aiohttp.ClientSession:
    """Return a session for thousands of concurrent streams, whose requests have no time limit.

    Responses are not decompressed, because a compressed kilobyte may expand to a megabyte. Proxies
    of the environment are not used, because they would get the API key.
    """
    connector = (
        aiohttp.TCPConnector(limit=0, force_close=True)
        if connection_per_request
        else aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_TIMEOUT_S)
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers={"Accept-Encoding": "identity", **(headers or {})},
    )


def without_proxy(env: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the environment of a process whose clients send requests to this server directly."""
    excluded = {env.get(name, "").strip() for name in NO_PROXY} - {""}
    if "*" not in excluded:
        excluded.add(urlsplit(url).hostname or "")
    return {**env, **dict.fromkeys(NO_PROXY, ",".join(sorted(excluded)))}


def allow_many_connections() -> None:
    """Raise the limit of open files, usually 1024: each active turn has an open connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def refuse_compressed(response: aiohttp.ClientResponse) -> None:
    """Raise TurnFailed for an answer that cannot be read, nor searched for keys."""
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise TurnFailed(
            f"the server compressed its answer ({shortened(coding)}) without being asked to"
        )


async def stream_completion(
    session: aiohttp.ClientSession,
    url: str,
    body: io.BytesIO,
    answer: PartialAnswer,
    now_s: Callable[[], float],
    headers: dict[str, str] | None = None,
) -> None:
    """Send a completion request and fill `answer` with the stream. Raises one of FAILURES;
    `QueueFull` if the request can be sent again.

    Call `answer.check` afterwards: a complete stream may still have the wrong length.
    """
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            message = error_message(await response.content.read(MAX_ERROR_BYTES), answer.secrets)
            hint = f"; set {API_KEY} to a valid key" if response.status == 401 else ""
            failure = f"the server answered {response.status}: {message}{hint}"
            raise refusal(failure, response.status, response.headers.get(RETRY_AFTER))
        if response.content_type != "text/event-stream":
            raise TurnFailed(f"the server answered {response.content_type}, not a stream")
        refuse_compressed(response)
        async for received in response.content.iter_any():
            answer.take(received, now_s())
            if answer.first_token_at_s is not None:
                body.truncate(0)  # frees the memory of a long prompt, which is not sent again


def failure_reason(
    failure: Exception, url: str, answer: PartialAnswer, turn_timeout_s: float | None = None
) -> str:
    """Return the text of one of FAILURES for the turn's record, without secrets."""
    progress = f"after {len(answer.ids)} output tokens"
    match failure:
        case TurnFailed():
            return redact(str(failure), answer.secrets)
        case aiohttp.ConnectionTimeoutError():
            return f"no connection to {url} within {CONNECT_TIMEOUT_S:g} s"
        case TimeoutError() if turn_timeout_s is not None:
            return f"turn timeout of {turn_timeout_s:g} s exceeded {progress}"
        case aiohttp.ClientConnectorError():
            cause = os.strerror(failure.os_error.errno or 0)
            return f"cannot connect to {url}: {cause.lower()}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | OSError():
            return f"connection lost {progress}"
    message = redact(f"{type(failure).__name__}: {failure}", answer.secrets)
    return shortened(f"{message} {progress}")
