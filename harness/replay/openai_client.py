"""Requests outside the replay, which go through the official client of OpenAI's API.

In: a URL of a server that the user named. Out: its answer, or `RequestFailed`. The server gets the
request and the user's key, and nothing that the client takes from the environment; no proxy gets
anything, and no redirect is followed. Import this module in functions, since that takes a second.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import openai

from harness.replay.http import MAX_ERROR_BYTES, RequestFailed, api_key, authorization

OWN_HEADERS = frozenset(("content-length", "content-type", "host"))
"""Kept. Others, such as the headers in `OPENAI_CUSTOM_HEADERS`, may be for other servers."""


def fetch(url: str, timeout_s: float, max_bytes: int, content: bytes | None = None) -> bytes:
    """Send a GET request, or `content` in a POST request, and return the first bytes of the answer.
    Raises RequestFailed."""

    async def first_bytes() -> bytes:
        async with asyncio.timeout(timeout_s), open_client(timeout_s) as client:
            return await read(client, url, max_bytes, content)

    try:
        return asyncio.run(first_bytes())
    except TimeoutError:
        raise RequestFailed(f"no answer within {timeout_s:g} s") from None


async def read(
    client: openai.AsyncOpenAI, url: str, max_bytes: int, content: bytes | None = None
) -> bytes:
    """Send a request as `fetch` does, with a client that sends several."""
    async with answer(client, url, content) as parts:
        return await _first_bytes(parts, max_bytes)


@asynccontextmanager
async def open_client(timeout_s: float) -> AsyncIterator[openai.AsyncOpenAI]:
    """Yield a client that opens a connection for each request, since servers may close idle ones.
    `timeout_s`: for each part of an answer."""
    http = openai.DefaultAsyncHttpxClient(
        trust_env=False,
        follow_redirects=False,
        verify=ssl.create_default_context(),  # the authorities that replays trust
        limits=httpx2.Limits(max_keepalive_connections=0),
        event_hooks={"request": [_keep_own_headers], "response": [_refuse]},
    )
    async with openai.AsyncOpenAI(
        base_url="http://unused",  # requests have whole URLs
        api_key="none",  # `_keep_own_headers` sends the user's, if there is one
        timeout=timeout_s,
        max_retries=0,
        http_client=http,
    ) as client:
        yield client


@asynccontextmanager
async def answer(
    client: openai.AsyncOpenAI, url: str, content: bytes | None = None
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the parts of an answer as they arrive. Raises RequestFailed, also between parts."""
    kind = openai.AsyncStream[object]
    try:
        if content is None:
            stream = await client.get(url, cast_to=object, stream=True, stream_cls=kind)
        else:
            stream = await client.post(
                url, content=content, cast_to=object, stream=True, stream_cls=kind
            )
        async with stream:
            yield stream.response.aiter_raw()
    except (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise RequestFailed(_reason(error)) from None


def _reason(error: BaseException) -> str:
    """Return the first cause: above it are only "Connection error." and the like."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    number = error.errno if isinstance(error, OSError) else None
    if number and number > 0:
        return f"[Errno {number}] {os.strerror(number)}"
    return str(error) or type(error).__name__


async def _keep_own_headers(request: httpx2.Request) -> None:
    for name in set(request.headers) - OWN_HEADERS:
        del request.headers[name]
    request.headers.update({"Accept-Encoding": "identity", **authorization(api_key())})


async def _refuse(response: httpx2.Response) -> None:
    if not response.is_success:
        body = await _first_bytes(response.aiter_raw(), MAX_ERROR_BYTES)
        raise RequestFailed(f"HTTP status {response.status_code}", response.status_code, body)


async def _first_bytes(parts: AsyncIterator[bytes], max_bytes: int) -> bytes:
    received = bytearray()
    async for part in parts:
        received += part
        if len(received) >= max_bytes:
            break
    return bytes(received[:max_bytes])
