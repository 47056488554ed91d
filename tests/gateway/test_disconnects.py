"""A client that leaves aborts its own turn: the server has not failed, and stays available."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import orjson
import pytest

from harness.gateway import Gateway, serve_gateway
from harness.replay.live_server import LiveServer
from tests.gateway.test_proxy import ASK
from tests.lines import Line, into

TIMES = 40
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": "w"}}]}) + b"\n\n"
DONE = CHUNK + b"data: [DONE]\n\n"
FAILED = b'data: {"error": "no memory"}\n\n' + CHUNK
RESET = struct.pack("ii", 1, 0)


class Server:
    """Answers with the first bytes of a stream, or not at all, and does the rest when asked."""

    def __init__(self, first: bytes | None) -> None:
        self._first = first
        self.arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if self._first is not None:
            writer.write(HEAD)
            send(writer, self._first)
        self.arrived.put_nowait(writer)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
            await asyncio.sleep(0.01)  # for the connections to close


def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def leave(url: str, server: Server, *, stream: bool, reset: bool, then: str) -> None:
    """Send a request, read the first chunk of a stream, and close or reset the connection.

    What the server does "before" or "after" this reaches the gateway at the same time.
    """
    host, port = url.removeprefix("http://").split(":")
    body = orjson.dumps({**ASK, "stream": stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, head.encode() + b"\r\n\r\n" + body)
        writer = await server.arrived.get()
        received = b""
        while stream and b'"w"' not in received:
            received += await loop.sock_recv(client, 999)
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if then == "sends before":
            send(writer, CHUNK)
    if then == "sends after":
        send(writer, CHUNK)
    elif then == "breaks after":
        writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("stream", "then"),
    [
        (True, "sends before"),
        (True, "sends after"),
        (True, "breaks after"),
        (True, ""),
        (False, "breaks after"),
        (False, ""),
    ],
)
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_leaves_is_no_failure_of_the_server(
    stream: bool, then: str, reset: bool
) -> None:
    lines: list[Line] = []

    async def go() -> None:
        server = Server(CHUNK if stream else None)
        async with server.serving() as backend:
            gateway = Gateway([LiveServer(backend, tagged=True)], into(lines))
            async with serve_gateway(gateway) as url:
                for times in range(1, TIMES + 1):
                    await leave(url, server, stream=stream, reset=reset, then=then)
                    while len(lines) < times:
                        await asyncio.sleep(0.001)
                    assert gateway._router.replicas[0].available

    asyncio.run(go())
    assert [line["error"] for line in lines] == ["the client disconnected"] * TIMES


@pytest.mark.parametrize(("first", "error"), [(DONE, None), (FAILED, "no memory")])
def test_what_the_server_sent_before_its_client_left_counts(
    first: bytes, error: str | None
) -> None:
    lines: list[Line] = []

    async def go() -> None:
        server = Server(first)
        async with (
            server.serving() as backend,
            serve_gateway(Gateway([LiveServer(backend, tagged=True)], into(lines))) as url,
        ):
            await leave(url, server, stream=True, reset=False, then="")
            while not lines:
                await asyncio.sleep(0.001)

    asyncio.run(go())
    assert [line["error"] for line in lines] == [error]
