"""Measure the latency that the gateway adds to each request and to each chunk.

200 direct streams and 200 through the gateway run at the same time, started alternately, with a
chunk every 200 ms. Both share one server, one client and one machine, and load less than a core.
Each chunk contains the time at which the server sent it and at which the request arrived, on the
same clock. Server and client disable garbage collection meanwhile and, where it is permitted, all
three processes get real-time priority.
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
START_WINDOW_S = 1.0
STREAM_TIMEOUT_S = 30.0
"""Timeout of a stream, so that one that never ends fails by name."""
ROOT = Path(__file__).parents[2]

Latencies = list[tuple[float, float]]
"""For each chunk of a stream, in seconds: the latency of its request and of the chunk."""


@contextmanager
def process(*command: str) -> Iterator[tuple[str, int]]:
    """Run a command; yield the base URL that it prints first, and its pid."""
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
def real_time_priority(*pids: int) -> Iterator[bool]:
    """Give the processes and this one real-time priority; yield whether that is permitted."""
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
    options = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(options | {"messages": [{"role": "user", "content": f"{name} " * 4000}]})


async def stream(
    session: aiohttp.ClientSession, url: str, sent: bytes, delay_s: float
) -> Latencies:
    await asyncio.sleep(delay_s)
    latencies: Latencies = []
    sent_s = time.monotonic()
    async with session.post(f"{url}/v1/chat/completions", data=sent) as answer:
        async for line in answer.content:
            now_s = time.monotonic()
            if line.startswith(b"data: {"):
                event = orjson.loads(line[6:])
                latencies.append((event["arrived"] - sent_s, now_s - event["sent"]))
    return latencies


async def rounds(direct: str, gateway: str, times: int) -> dict[str, list[Latencies]]:
    latencies: dict[str, list[Latencies]] = {"direct": [], "gateway": []}
    bodies = [body(i) for i in range(STREAMS)]
    each_s = START_WINDOW_S / STREAMS
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(STREAM_TIMEOUT_S)
    ) as session:
        for number in range(times + 1):
            streams: list[Any] = []
            for i, sent in enumerate(bodies):
                named = f"{gateway}/programs/{number}-{i}"
                streams.append(stream(session, direct, sent, i * each_s))
                streams.append(stream(session, named, sent, (i + 0.5) * each_s))
            ended = await asyncio.gather(*streams)
            if number:  # the first opens the connections
                latencies["direct"] += ended[::2]
                latencies["gateway"] += ended[1::2]
    return latencies


def added_ms(latencies: Mapping[str, list[Latencies]]) -> dict[str, tuple[float, float, float]]:
    """Return for each kind and percentile: direct, through the gateway, the difference, in ms."""
    rows = {}
    for index, kind in enumerate(("request", "chunk")):
        values = {
            name: [
                latency[index]
                for chunks in streams
                for latency in (chunks if index else chunks[:1])
            ]
            for name, streams in latencies.items()
        }
        for percentile in (50, 99):
            direct, through = (
                1000 * float(np.percentile(values[name], percentile))
                for name in ("direct", "gateway")
            )
            rows[f"{kind} P{percentile}"] = (direct, through, through - direct)
    return rows


def test_latency_added_by_the_gateway_to_requests_and_chunks(
    benchmark: Any, tmp_path: Path, bench: str
) -> None:
    times = 1 if benchmark.disabled else ROUNDS
    upstream = (sys.executable, "-m", "tests.gateway.upstream", "--stamps", str(CHUNK_S))
    with (
        process(*upstream) as (server, server_pid),
        process(bench, "gateway", server, "--out", str(tmp_path / "o")) as (gateway, gateway_pid),
        real_time_priority(server_pid, gateway_pid) as prioritised,
    ):
        latencies = benchmark.pedantic(
            lambda: asyncio.run(rounds(server, gateway, times)), rounds=1
        )
    assert all(len(streams) == STREAMS * times for streams in latencies.values())
    print()
    rows = added_ms(latencies)
    for kind, (direct, through, added) in rows.items():
        print(f"{kind}: direct {direct:.2f} ms, gateway {through:.2f} ms, {added:+.2f} ms")
        benchmark.extra_info[f"{kind} added ms"] = round(added, 2)
    if not prioritised:
        print("no real-time priority: other processes influence these numbers")
