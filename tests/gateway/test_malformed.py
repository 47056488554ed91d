"""Malformed requests get the errors of OpenAI's API, and are not forwarded."""

from __future__ import annotations

import asyncio
import gzip
import resource
from typing import Any

import orjson
import pytest

from harness.gateway.proxy import MAX_BODY_BYTES
from tests.gateway.test_proxy import ASK, post
from tests.gateway.upstream import Upstream, gateway_to
from tests.sentences import mentions


def send(path: str, body: Any) -> tuple[int, Any, int]:
    async def go() -> tuple[int, Any, int]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, lines):
            status, answer, _ = await post(url + path, body)
            assert not lines
            return status, orjson.loads(answer), len(upstream.bodies)

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
def test_a_malformed_request_is_refused(path: str, body: Any, status: int, message: str) -> None:
    received, answer, sent = send(path, body)
    assert (received, sent) == (status, 0)
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_body_of_50_mb_is_refused_before_it_is_read_into_memory() -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def chunks() -> Any:
        for _ in range(50):
            yield b"x" * (1 << 20)

    async def go() -> tuple[int, bytes]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, _):
            status, answer, _ = await post(url + "/v1/chat/completions", chunks())
            assert not upstream.bodies
            return status, answer

    status, answer = asyncio.run(go())
    assert status == 413
    assert f"larger than {MAX_BODY_BYTES >> 20} MiB" in orjson.loads(answer)["error"]["message"]
    growth_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert growth_kb < 2 * (MAX_BODY_BYTES >> 10)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"])
@pytest.mark.parametrize("path", ["chat/completions", "embeddings"])
def test_a_compressed_body_is_refused_and_never_expanded(coding: str, path: str) -> None:
    """The gzip body expands to 64 MiB. Each is sent with its length, and in chunks."""
    compressed = gzip.compress(b" " * (64 << 20), 1) if coding == "gzip" else b"not JSON"
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def chunks() -> Any:
        yield compressed

    async def go() -> list[tuple[int, bytes]]:
        upstream, headers = Upstream(), {"Content-Encoding": coding}
        async with gateway_to(upstream) as (url, lines):
            answers = [
                (await post(f"{url}/v1/{path}", body, headers=headers))[:2]
                for body in (compressed, chunks())
            ]
            assert not upstream.bodies
            assert not lines
            return answers

    for status, answer in asyncio.run(go()):
        assert status == 415
        message = orjson.loads(answer)["error"]["message"]
        assert mentions(message, f"Content-Encoding {coding}", "uncompressed")
    growth_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert growth_kb < MAX_BODY_BYTES >> 10


def test_the_coding_identity_is_accepted() -> None:
    async def go() -> int:
        async with gateway_to(Upstream()) as (url, _):
            headers = {"Content-Encoding": "identity"}
            status, _, _ = await post(f"{url}/v1/chat/completions", ASK, headers=headers)
            return status

    assert asyncio.run(go()) == 200


POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
SECRET = b"sk-planted-12345"


async def send_raw(url: str, *parts: bytes) -> bytes:
    """Send the parts 50 ms apart, and return what the gateway sends until it closes the connection,
    or until the first line of a response has arrived. A connection that the gateway closes while a
    part is on its way is reset."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = asyncio.create_task(reader.readline())
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0.05)
    try:
        return await asyncio.wait_for(received, 10)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /v1/models HTTP/9.9\r\n\r\n"],
        [b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer " + SECRET + b"\0\r\n\r\n"],
        [b"GET /v1/models?" + SECRET * 999 + b" HTTP/1.1\r\n\r\n"],
        [POST + b"Content-Length: " + SECRET + b"\r\n\r\n"],
        [POST + b"Transfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\n"],
    ],
)
def test_malformed_http_gets_400_and_prints_one_line_without_its_content(
    parts: list[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    async def go() -> bytes:
        async with gateway_to(Upstream()) as (url, _):
            return await send_raw(url, *parts)

    assert asyncio.run(go()).split()[1] == b"400"
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("bench: a client sent malformed HTTP (")
    assert SECRET.decode() not in line


def test_requests_that_do_not_arrive_in_time_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers of 500 connections, and bodies that are missing, slow, or cut by a bad chunk."""
    monkeypatch.setattr("harness.gateway.serving.HEAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr("harness.gateway.client_request.BODY_TIMEOUT_S", 0.5)
    length = POST + b"Content-Length: 500\r\n\r\n"
    requests = [[b""], [POST], [b"GET "], [POST + b"X: y", b"z"]] * 125
    bad_chunk = [POST + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"]
    bodies = [[length], [length, b"{"], [length, *[b" "] * 20], bad_chunk]

    async def go() -> tuple[set[bytes], list[bytes]]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, lines):
            closed = await asyncio.gather(*(send_raw(url, *parts) for parts in requests))
            timed_out = await asyncio.gather(*(send_raw(url, *parts) for parts in bodies))
            assert not lines
            assert not upstream.bodies
            status, _, _ = await post(f"{url}/v1/chat/completions", ASK)
            assert status == 200
            return set(closed), timed_out

    closed, timed_out = asyncio.run(go())
    assert closed == {b""}
    assert timed_out == [b"HTTP/1.1 408 Request Timeout\r\n"] * 4


def test_a_connection_closed_within_a_request_leaves_no_record() -> None:
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


def test_a_client_that_does_not_read_slows_the_server_and_fills_no_memory() -> None:
    """The stream has 40 MB, of which sockets and buffers can hold a small part."""
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
            growth_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
            writer.transport.abort()
            return growth_kb

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(go()) < 100_000
