"""What is no request: answered as OpenAI's API would, and nothing is sent on."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import orjson
import pytest

from harness.gateway.proxy import MAX_BODY_BYTES
from tests.gateway.test_proxy import ASK, post
from tests.gateway.upstream import Upstream, gateway_to


def answered(path: str, body: Any) -> tuple[int, Any, int]:
    async def go() -> tuple[int, Any, int]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, lines):
            status, told, _ = await post(url + path, body)
            assert not lines
            return status, orjson.loads(told), len(upstream.bodies)

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/chat/completions", b"{not json", 400, "We could not parse the JSON body"),
        ("/v1/chat/completions", b"", 400, "We could not parse the JSON body"),
        ("/v1/chat/completions", b"[1]", 400, "must be an object"),
        ("/v1/chat/completions", b"\xff\xfe", 400, "We could not parse the JSON body"),
        ("/v1/chat/completions", {**ASK, "program_id": ["a"]}, 400, "program_id"),
        ("/nothing/here", ASK, 404, "Invalid URL (POST /nothing/here)"),
        ("/programs/v1/chat", ASK, 404, "Invalid URL"),
    ],
)
def test_a_request_that_is_none_is_refused(path: str, body: Any, status: int, message: str) -> None:
    found, told, sent = answered(path, body)
    assert (found, sent) == (status, 0)
    assert message in told["error"]["message"]
    assert told["error"]["type"] == "invalid_request_error"


def test_a_body_of_50_mb_is_refused_before_it_is_in_memory() -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def pieces() -> Any:
        for _ in range(50):
            yield b"x" * (1 << 20)

    async def go() -> tuple[int, bytes]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, _):
            status, told, _ = await post(url + "/v1/chat/completions", pieces())
            assert not upstream.bodies
            return status, told

    status, told = asyncio.run(go())
    assert status == 413
    assert f"larger than {MAX_BODY_BYTES >> 20} MiB" in orjson.loads(told)["error"]["message"]
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert grown_kb < 2 * (MAX_BODY_BYTES >> 10)


def test_a_socket_that_closes_half_way_leaves_no_turn() -> None:
    async def go() -> int:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, lines):
            host, port = url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"
            )
            await writer.drain()
            writer.close()
            await asyncio.sleep(0.2)
            status, _, _ = await post(url + "/v1/chat/completions", ASK)
            assert status == 200
            return len(lines)

    assert asyncio.run(go()) == 1


def test_a_reader_that_does_not_read_holds_the_server_up_and_fills_no_memory() -> None:
    """The stream is 40 MB; what sockets and buffers hold is a small part of it."""
    word = "w" * 20_000

    async def go() -> int:
        upstream = Upstream(words=f"{word} " * 2000)
        async with gateway_to(upstream) as (url, _):
            host, port = url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
            body = orjson.dumps({**ASK, "stream": True})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
            writer.write(head.encode() + b"\r\n\r\n" + body)
            await writer.drain()
            await asyncio.sleep(1.0)
            grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
            writer.transport.abort()
            return grown_kb

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(go()) < 100_000
