"""Hostile servers: each turn of a replay ends soon with an error, and memory stays within the
limits of docs/design/security.md."""

from __future__ import annotations

import asyncio
import gzip
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from random import Random
from typing import Any

import aiohttp
import pytest

from harness.gateway.proxy import Gateway
from harness.gateway.serving import serve_gateway
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from tests.fuzz.mutations import mutated
from tests.fuzz.streams import CHUNKS, _stream
from tests.gateway.test_proxy import ASK, post
from tests.gateway.upstream import Upstream, gateway_to
from tests.lines import into
from traces import Program, Turn

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CLOSE = HEAD + b"Connection: close\r\n\r\n"
PACKED = HEAD + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
MIB = b"x" * (1 << 20)
IDS = b'data: {"choices": [{"index": 0, "token_ids": [%b]}]}\n\n' % b",".join([b"7"] * 50_000)
MAX_GROWTH_KB = 400 << 10
"""Memory for an event of 64 MiB, joined and decoded, and for four million token ids."""


def forever(chunk: bytes, head: bytes = CLOSE) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        yield head
        while True:
            yield chunk

    return chunks


def once(*chunks: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter(chunks)


ATTACKS = {
    "a line without end": (forever(MIB), "longer than 67108864 bytes"),
    "an event without end": (forever(b"data: " + MIB + b"\n"), "longer than 67108864 bytes"),
    "tokens without end": (forever(IDS), "more than 4,000,000 tokens"),
    "a header without end": (forever(MIB, HEAD + b"X: "), ""),
    "headers without end": (forever(b"X: y\r\n" * 1000, HEAD), ""),
    "a packed stream": (
        once(PACKED, gzip.compress(bytes(1 << 28), 1)),
        "its answer (gzip)",
    ),
    "deep JSON": (
        once(CLOSE, b"data: " + b"[" * 100_000 + b"\n\n"),
        "cannot read the stream as a completion",
    ),
    "a deep error": (
        once(CLOSE, b'data: {"error": ' + b"[" * 900 + b"]" * 900 + b"}\n\n"),
        "the engine failed",
    ),
    "a body shorter than its length": (once(HEAD, b"Content-Length: 9999\r\n\r\ndata: 1"), ""),
    "no HTTP at all": (once(b"\x16\x03\x01\x00\xff\xfe"), ""),
}


@asynccontextmanager
async def sending(chunks: Callable[[], Iterator[bytes]]) -> AsyncIterator[str]:
    """Serve: read the first bytes of a request, then send the chunks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1 << 16)
            for chunk in chunks():
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()


async def replayed(url: str, timeout_s: float, programs: int = 1) -> list[Any]:
    lines: list[Any] = []
    await replay_live(
        [Program(f"p{k}", (Turn(4, 2),)) for k in range(programs)],
        [0.0] * programs,
        None,
        Service([LiveServer(url)], "m", range(10, 100), seed=1, turn_timeout_s=timeout_s),
        on_turn=into(lines),
    )
    return lines


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_turn_ends_with_its_error_and_memory_stays_bounded(attack: str) -> None:
    chunks, message = ATTACKS[attack]

    async def go() -> list[Any]:
        async with sending(chunks) as url:
            return await replayed(url, timeout_s=60.0)

    before_kb = peak_kb()
    (line,) = asyncio.run(go())
    assert message in line["error"]
    assert len(line["error"]) < 300
    assert "\n" not in line["error"]
    assert "turn timeout" not in line["error"]
    assert peak_kb() - before_kb < MAX_GROWTH_KB


def test_no_malformed_answer_breaks_the_replay() -> None:
    """The answers are mutated HTTP responses, including their heads."""
    response = HEAD + b"Connection: close\r\n\r\n" + _stream(CHUNKS)
    random = Random(3)
    answers = [mutated(response, random) for _ in range(300)]
    remaining = iter(answers)

    async def go() -> list[Any]:
        async with sending(lambda: iter([next(remaining)])) as url:
            return await replayed(url, 60.0, programs=len(answers))

    lines = asyncio.run(go())
    assert len(lines) == len(answers)
    assert any(line["error"] is None for line in lines), (
        "all answers fail, so the test shows little"
    )


@pytest.mark.parametrize("attack", ["an event without end", "an answer without end"])
def test_the_gateway_forwards_no_more_than_its_limits(attack: str) -> None:
    chunks = forever(b"data: " + MIB + b"\n") if "event" in attack else forever(MIB, JSON)

    async def go() -> list[Any]:
        lines: list[Any] = []
        async with (
            sending(chunks) as url,
            serve_gateway(Gateway([LiveServer(url)], into(lines))) as gateway,
        ):
            with suppress(aiohttp.ClientPayloadError):  # the client's stream ends early too
                status, _, _ = await post(gateway + "/v1/chat/completions", ASK)
                assert status == 502
        return lines

    before_kb = peak_kb()
    (line,) = asyncio.run(go())
    assert "no answer from the server" in line["error"]
    assert peak_kb() - before_kb < MAX_GROWTH_KB


REQUEST = (
    b"POST /programs/p/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    b"\r\nX-Job-Id: j\r\nContent-Length: 66\r\nConnection: close\r\n\r\n"
    b'{"model": "m", "messages": [{"role": "user", "content": "fix it"}]}'
)
PATHS = (b"/programs/../../etc/v1/models", b"/programs/%00/v1/models", b"/programs/%2e%2e%2fx/v1/x",
         b"/programs/" + b"a" * 9000 + b"/v1/models", b"//evil/v1/models", b"http://evil/v1/models",
         b"/v1/../admin", b"/v1/%2e%2e/admin", b"*")  # fmt: skip


def test_no_malformed_request_breaks_the_gateway() -> None:
    """Mutated requests, including heads, are answered or disconnected; the next one is served."""
    random = Random(4)
    requests = [REQUEST.replace(b"/programs/p/v1/chat/completions", path) for path in PATHS]
    requests += [mutated(REQUEST, random) for _ in range(300)]

    async def go() -> None:
        async with gateway_to(Upstream()) as (url, lines):
            host, port = url.removeprefix("http://").split(":")
            for request in requests:
                reader, writer = await asyncio.open_connection(host, int(port))
                with closing(writer):
                    writer.write(request)
                    writer.write_eof()
                    answer = await asyncio.wait_for(reader.read(1 << 16), 30)
                assert answer[:9] in (b"HTTP/1.1 ", b"HTTP/1.0 ", b""), answer[:80]
                assert b"Traceback" not in answer
                assert not answer[9:].startswith(b"500"), (request, answer)
            status, _, _ = await post(url + "/v1/chat/completions", ASK)
            assert status == 200
            assert all(line["program_id"].isprintable() for line in lines)

    asyncio.run(go())
