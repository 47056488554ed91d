"""Over many turns, some of which fail, the numbers of open files, tasks, threads and objects and
the memory do not grow.

Programs are replayed against a separate trivial server, a fifth of them through the gateway. Every
fiftieth turn fails: status 500, a truncated stream, or no answer until the client disconnects.
`make soak` runs 50,000 turns (SOAK_TURNS), as many as an hour at 14 turns/s; the default is fewer.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import aiohttp
import numpy as np
import pytest

from harness.gateway.proxy import Gateway
from harness.gateway.serving import serve_gateway
from harness.load.arrivals import choose_programs
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from servers.records.turns import TurnRecord
from tests.bench.trivial_server import trivial_server
from traces import Program, Turn

WANTED_TURNS = int(os.environ.get("SOAK_TURNS", "1000"))
FAULTS_EVERY, TURN_TIMEOUT_S = 50, 5.0
TURNS, IN_FLIGHT = 10, 5
"""Turns of a program; programs in flight for each fifth of the load."""
SAMPLES = 40


class Sample(NamedTuple):
    turns: int
    open_files: int
    tasks: int
    threads: int
    objects: int
    """Objects tracked by the garbage collector after a collection."""
    rss_kb: int


def sample(turns: int) -> Sample:
    gc.collect()
    return Sample(
        turns,
        len(os.listdir("/proc/self/fd")),
        len(asyncio.all_tasks()),
        threading.active_count(),
        len(gc.get_objects()),
        int(Path("/proc/self/statm").read_text().split()[1]) * (os.sysconf("SC_PAGE_SIZE") // 1024),
    )


def programs(jobs: int, prefix: str) -> list[Program]:
    turns = tuple(
        Turn(30 + 20 * index, 8, 18 + 20 * index if index else 0, ("ls",), None, 0.001 * index)
        for index in range(TURNS)
    )
    return choose_programs([Program(f"{prefix}{n}", turns) for n in range(5)], jobs)


class Soak:
    def __init__(self, turns: int) -> None:
        self.turns = self.failed = 0
        self.samples: list[Sample] = []
        self._every = turns // SAMPLES

    def record_turn(self, record: TurnRecord) -> None:
        self.turns += 1
        self.failed += record.error is not None
        if self.turns % self._every == 0:
            self.samples.append(sample(self.turns))

    async def run(self, url: str, jobs: int) -> None:
        gateway = Gateway([LiveServer(url, tagged=True)], lambda _: None)
        async with serve_gateway(gateway) as by_gateway, aiohttp.ClientSession() as session:
            ended: set[asyncio.Task[None]] = set()

            async def end(program_id: str) -> None:
                async with session.delete(f"{by_gateway}/programs/{quote(program_id)}") as answer:
                    await answer.read()

            def record_turn(record: TurnRecord) -> None:
                self.record_turn(record)
                if record.error is not None or record.turn == TURNS - 1:
                    task = asyncio.create_task(end(record.program_id))
                    ended.add(task)
                    task.add_done_callback(ended.discard)

            await asyncio.gather(
                self._replay(
                    programs(4 * jobs // 5, "direct"), 4 * IN_FLIGHT, url, self.record_turn
                ),
                self._replay(programs(jobs // 5, "through"), IN_FLIGHT, by_gateway, record_turn),
            )
            await asyncio.gather(*ended)

    async def _replay(
        self,
        load: list[Program],
        in_flight: int,
        url: str,
        record_turn: Callable[[TurnRecord], None],
    ) -> None:
        await replay_live(
            load,
            None,
            in_flight,
            Service(
                [LiveServer(url)], "m", range(1000, 100_000), seed=0, turn_timeout_s=TURN_TIMEOUT_S
            ),
            on_turn=record_turn,
        )


@pytest.fixture
def url() -> Iterator[str]:
    with trivial_server(FAULTS_EVERY) as url:
        yield url


def rise(samples: list[Sample], field: str) -> float:
    """Return the rise of the median from the second to the last quarter (without the end)."""
    values, quarter = np.array([getattr(s, field) for s in samples]), len(samples) // 4
    late, early = values[-quarter - 5 : -5], values[quarter : 2 * quarter]
    return float(np.median(late) - np.median(early))


def test_nothing_grows_over_many_turns(url: str) -> None:
    """If every turn leaked two objects, the rise would be as large as the number of turns.

    By chance they rise by up to 650: those of the 41 to 60 tasks in flight, with about 50 objects
    each, and aiohttp's caches of URLs, which still fill.
    """
    soak = Soak(WANTED_TURNS)
    # One turn in fifty fails and ends its program, so that of ten turns about eight run.
    asyncio.run(soak.run(url, WANTED_TURNS // 8))
    print("\n" + "\n".join(map(str, soak.samples[:: SAMPLES // 8])))
    assert soak.turns > 0.9 * WANTED_TURNS
    assert soak.failed > 0.015 * soak.turns
    assert abs(rise(soak.samples, "open_files")) <= 4 * IN_FLIGHT
    assert abs(rise(soak.samples, "tasks")) <= 4 * IN_FLIGHT
    assert rise(soak.samples, "threads") == 0
    assert rise(soak.samples, "objects") < 0.02 * soak.turns + 1000
    assert rise(soak.samples, "rss_kb") < 0.05 * soak.turns + 2000
