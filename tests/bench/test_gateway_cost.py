"""What the gateway adds: the way of each request and of each chunk, through it and direct.

200 streams direct and 200 through the gateway at the same time, begun in turn, each a chunk every
200 ms, so that both share one server, one client and one machine, whose load they leave below a
core. The server says in each chunk when it sent it and when the request had come, on the same
clock. Server and client look for no garbage meanwhile, and where it is permitted all three
processes go before whatever else runs here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson

STREAMS, ROUNDS, CHUNK_S = 200, 4, 0.2
BEGIN_WITHIN_S = 1.0
STUCK_S = 30.0
"""Of a stream: so one that never ends names itself."""
ROOT = Path(__file__).parents[2]

Ways = list[tuple[float, float]]
"""Of each chunk of a stream, in seconds: the way of its request, its own way."""


@contextmanager
def process(*command: str) -> Iterator[tuple[str, int]]:
    """The base URL that it prints first, and its pid."""
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert running.stdout is not None
        yield running.stdout.readline().strip().removesuffix("/v1"), running.pid
    finally:
        running.terminate()
        running.communicate()


@contextmanager
def first(*pids: int) -> Iterator[bool]:
    """Whether they may go before all others; we too."""
    gc.collect()
    gc.disable()
    try:
        for pid in (*pids, 0):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
        yield True
    except PermissionError:
        yield False
    finally:
        gc.enable()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def body(name: int) -> bytes:
    asked = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(asked | {"messages": [{"role": "user", "content": f"{name} " * 4000}]})


async def stream(session: aiohttp.ClientSession, url: str, sent: bytes, begin_s: float) -> Ways:
    await asyncio.sleep(begin_s)
    found: Ways = []
    sent_s = time.monotonic()
    async with session.post(f"{url}/v1/chat/completions", data=sent) as answer:
        async for line in answer.content:
            now_s = time.monotonic()
            if line.startswith(b"data: {"):
                told = orjson.loads(line[6:])
                found.append((told["arrived"] - sent_s, now_s - told["sent"]))
    return found


async def rounds(direct: str, gateway: str, times: int) -> dict[str, list[Ways]]:
    found: dict[str, list[Ways]] = {"direct": [], "gateway": []}
    bodies = [body(i) for i in range(STREAMS)]
    each_s = BEGIN_WITHIN_S / STREAMS
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(STUCK_S)
    ) as session:
        for number in range(times + 1):
            streams: list[Any] = []
            for i, sent in enumerate(bodies):
                named = f"{gateway}/programs/{number}-{i}"
                streams.append(stream(session, direct, sent, i * each_s))
                streams.append(stream(session, named, sent, (i + 0.5) * each_s))
            got = await asyncio.gather(*streams)
            if number:  # the first opens the connections
                found["direct"] += got[::2]
                found["gateway"] += got[1::2]
    return found


def added_ms(found: Mapping[str, list[Ways]]) -> dict[str, tuple[float, float, float]]:
    """By what and percentile: direct, through the gateway, the difference."""
    told = {}
    for place, what in enumerate(("request", "chunk")):
        ways = {
            name: [way[place] for ways in streams for way in (ways if place else ways[:1])]
            for name, streams in found.items()
        }
        for percentile in (50, 99):
            direct, through = (
                1000 * float(np.percentile(ways[name], percentile))
                for name in ("direct", "gateway")
            )
            told[f"{what} P{percentile}"] = (direct, through, through - direct)
    return told


def test_what_the_gateway_adds_to_a_request_and_to_a_chunk(
    benchmark: Any, tmp_path: Path, bench: str
) -> None:
    times = 1 if benchmark.disabled else ROUNDS
    upstream = (sys.executable, "-m", "tests.gateway.upstream", "--stamps", str(CHUNK_S))
    with (
        process(*upstream) as (server, server_pid),
        process(bench, "gateway", server, "--out", str(tmp_path / "o")) as (gateway, gateway_pid),
        first(server_pid, gateway_pid) as alone,
    ):
        found = benchmark.pedantic(lambda: asyncio.run(rounds(server, gateway, times)), rounds=1)
    assert all(len(streams) == STREAMS * times for streams in found.values())
    print()
    told = added_ms(found)
    for what, (direct, through, added) in told.items():
        print(f"{what}: direct {direct:.2f} ms, gateway {through:.2f} ms, {added:+.2f} ms")
        benchmark.extra_info[f"{what} added ms"] = round(added, 2)
    if not alone:
        print("other processes were not held back: those numbers hold their share")
