"""What the gateway adds: the way of each request and of each chunk, through it and direct.

200 streams at once, begun within a second, each a chunk every 50 ms, by turns direct and through
the gateway in one run.
The server says in each chunk when it sent it and when the request had come, on the same clock.
Server, gateway and client are processes of their own, so on two cores they share.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson

STREAMS, ROUNDS = 200, 6
ROOT = Path(__file__).parents[2]


@contextmanager
def process(*command: str) -> Iterator[str]:
    """The base URL that it prints first."""
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert running.stdout is not None
        yield running.stdout.readline().strip().removesuffix("/v1")
    finally:
        running.terminate()
        running.communicate()


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def stream(session: aiohttp.ClientSession, url: str, name: int) -> list[tuple[float, float]]:
    """Of each chunk, in seconds: the way of the request, the way of the chunk."""
    body: dict[str, Any] = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    body["messages"] = [{"role": "user", "content": f"{name} " * 4000}]
    await asyncio.sleep(name / STREAMS)  # one after the other, as turns of many agents come
    found: list[tuple[float, float]] = []
    sent_s = time.monotonic()
    async with session.post(f"{url}/v1/chat/completions", data=orjson.dumps(body)) as answer:
        async for line in answer.content:
            now_s = time.monotonic()
            if line.startswith(b"data: {"):
                told = orjson.loads(line[6:])
                found.append((told["arrived"] - sent_s, now_s - told["sent"]))
    return found


async def rounds(urls: dict[str, str]) -> dict[str, list[list[tuple[float, float]]]]:
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in urls}
    async with client() as session:
        for number in range(ROUNDS + 1):
            for name, url in urls.items():
                streams = [
                    stream(session, f"{url}/programs/{number}-{i}" if name != "direct" else url, i)
                    for i in range(STREAMS)
                ]
                got = await asyncio.gather(*streams)
                if number:  # the first opens the connections
                    found[name] += got
    return found


def p(values: Any, percentile: float) -> float:
    return float(np.percentile(values, percentile)) * 1000


def test_what_the_gateway_adds_to_a_request_and_to_a_chunk(
    benchmark: Any, tmp_path: Path, bench: str
) -> None:
    with (
        process(sys.executable, "-m", "tests.gateway.upstream", "--stamps") as server,
        process(bench, "gateway", server, "--out", str(tmp_path / "o")) as gateway,
    ):
        urls = {"direct": server, "gateway": gateway}
        found = benchmark.pedantic(lambda: asyncio.run(rounds(urls)), rounds=1)
    print()
    for place, what in enumerate(("request", "chunk")):
        ways = {
            name: [way[place] for ways in streams for way in (ways if place else ways[:1])]
            for name, streams in found.items()
        }
        for percentile in (50, 99):
            direct, through = (p(ways[name], percentile) for name in ("direct", "gateway"))
            print(
                f"{what}, P{percentile}, {STREAMS} streams: direct {direct:.2f} ms, through the"
                f" gateway {through:.2f} ms, {through - direct:+.2f} ms"
            )
    assert all(len(streams) == STREAMS * ROUNDS for streams in found.values())
