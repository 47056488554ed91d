"""The gateway's unix socket is reachable from inside as a TCP port of the sandbox's loopback."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from agents.sandbox.bubblewrap import INSIDE_PORT
from tests.agents.sandbox.conftest import TIMEOUT_S, Boxed

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
URL = f"http://127.0.0.1:{INSIDE_PORT}"


@asynccontextmanager
async def gateway(boxed: Boxed, path: Path, answer: Answer) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        # The backlog is small, as if the gateway were busy with many sandboxes.
        await web.UnixSite(runner, str(path), backlog=8).start()
        os.chown(path, boxed.uid, -1)
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def running(
    boxed: Boxed, path: Path, script: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *boxed.command("python3", "-c", script, socket=path),
        stdout=subprocess.PIPE,
        user=boxed.uid,
        group=boxed.uid,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def lines_of(boxed: Boxed, path: Path, answer: Answer, script: str) -> list[str]:
    async with gateway(boxed, path, answer), running(boxed, path, script) as process:
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    return output.decode().splitlines()


def test_a_streamed_answer_arrives_chunk_by_chunk(boxed: Boxed, shared: Path) -> None:
    """The server sends a chunk only after the previous one has been read inside."""
    script = (
        "from urllib.request import urlopen\n"
        f"for line in urlopen('{URL}/stream'): print(line.decode().strip(), flush=True)"
    )
    chunks: asyncio.Queue[str] = asyncio.Queue()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while chunk := await chunks.get():
            await response.write(f"{chunk}\n".encode())
        return response

    async def talk() -> None:
        path = shared / "gateway.sock"
        async with gateway(boxed, path, stream), running(boxed, path, script) as process:
            assert process.stdout is not None
            for chunk in ("first", "second", "third"):
                chunks.put_nowait(chunk)
                line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
                assert line.decode() == f"{chunk}\n"
            chunks.put_nowait("")
            assert await process.wait() == 0

    asyncio.run(talk())


def test_large_bodies_pass_both_ways_unchanged(boxed: Boxed, shared: Path) -> None:
    async def echo(request: web.Request) -> web.Response:
        received = bytearray()
        async for chunk in request.content.iter_any():
            received += chunk
        return web.Response(body=bytes(received))

    script = (
        "import os; from urllib.request import urlopen\n"
        f"sent = os.urandom(20 << 20); print(urlopen('{URL}', data=sent).read() == sent)"
    )
    output = asyncio.run(lines_of(boxed, shared / "gateway.sock", echo, script))
    assert output == ["True"]


def test_three_hundred_connections_can_be_open_at_once(boxed: Boxed, shared: Path) -> None:
    """Requests are answered once all of them have arrived."""
    waiting = 0
    all_arrived = asyncio.Event()

    async def answer(_request: web.Request) -> web.Response:
        nonlocal waiting
        waiting += 1
        if waiting == 300:
            all_arrived.set()
        await all_arrived.wait()
        return web.Response(text="ok")

    script = (
        "import socket\n"
        f"all = [socket.create_connection(('127.0.0.1', {INSIDE_PORT})) for _ in range(300)]\n"
        "for each in all: each.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "print(sum(b' 200 ' in each.makefile('rb').readline() for each in all))"
    )
    assert asyncio.run(lines_of(boxed, shared / "gateway.sock", answer, script)) == ["300"]


def test_a_half_closed_connection_still_gets_its_answer(boxed: Boxed, shared: Path) -> None:
    script = (
        "import socket\n"
        f"c = socket.create_connection(('127.0.0.1', {INSIDE_PORT}))\n"
        "c.sendall(b'question'); c.shutdown(socket.SHUT_WR); print(c.recv(100).decode())"
    )

    async def talk() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"answer to " + await reader.read(-1))
            await writer.drain()
            writer.close()

        path = shared / "gateway.sock"
        server = await asyncio.start_unix_server(answer, path)
        os.chown(path, boxed.uid, -1)
        async with server, running(boxed, path, script) as process:
            return (await asyncio.wait_for(process.communicate(), TIMEOUT_S))[0]

    assert asyncio.run(talk()) == b"answer to question\n"


def test_the_gateway_notices_that_a_client_disconnected(boxed: Boxed, shared: Path) -> None:
    script = (
        "import socket\n"
        f"c = socket.create_connection(('127.0.0.1', {INSIDE_PORT}))\n"
        "c.sendall(b'question'); c.recv(1); c.close(); input()"
    )

    async def talk() -> None:
        disconnected = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"started")
            while await reader.read(100):
                pass
            disconnected.set()
            writer.close()

        path = shared / "gateway.sock"
        server = await asyncio.start_unix_server(answer, path)
        os.chown(path, boxed.uid, -1)
        async with server, running(boxed, path, script):
            await asyncio.wait_for(disconnected.wait(), TIMEOUT_S)

    asyncio.run(talk())


def test_without_a_gateway_a_connection_is_closed_at_once(boxed: Boxed, shared: Path) -> None:
    path = shared / "gateway.sock"

    async def open_and_close() -> None:
        (await asyncio.start_unix_server(lambda _reader, _writer: None, path)).close()

    asyncio.run(open_and_close())
    path.touch()
    script = (
        "import socket\n"
        f"c = socket.create_connection(('127.0.0.1', {INSIDE_PORT}))\n"
        "try: print(c.recv(1))\nexcept ConnectionResetError: print('reset')"
    )
    output = boxed.run("python3", "-c", script, socket=path).stdout
    assert output in ("reset\n", "b''\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root's forwarder is another user")
def test_a_command_cannot_end_the_forwarder_of_root(own: Boxed, shared: Path) -> None:

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="still there")

    script = (
        "import os, signal; from urllib.request import urlopen\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(-1, signal.SIGTERM)\n"
        f"print(urlopen('{URL}').read().decode())"
    )
    output = asyncio.run(lines_of(own, shared / "gateway.sock", answer, script))
    assert output == ["still there"]
