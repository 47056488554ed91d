"""Schedules the boots of agents' processes and the starts of their programs.

Processes boot before their programs arrive, at most one per core at a time. The cell's clock starts
when the first ones have booted, so that booting competes less with measured programs for cores.
Times in seconds on that clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

MAX_WAITING = 32
"""Limit of the programs that are booting, or have booted but not started."""
START_DELAY_S = 0.2


class Starts:
    def __init__(
        self,
        programs: int,
        in_flight: int | None,
        cores: int,
        on_start: Callable[[float], None],
        on_stage: Callable[[str], None],
    ) -> None:
        """`in_flight`: limit of concurrent programs in a closed loop. `on_start`: called with the
        cell's time 0 on the machine's monotonic clock. `on_stage`: called with a description of
        what the cell waits for."""
        self._on_start = on_start
        self._on_stage = on_stage
        self._waiting = asyncio.Semaphore(MAX_WAITING)
        self._cores = asyncio.Semaphore(cores)
        self._in_flight = asyncio.Semaphore(in_flight or programs)
        self._count = self._first = min(MAX_WAITING, programs)
        """Numbers of programs that must boot before time 0: in total, and remaining."""
        self._on_stage(f"starting agents, 0 of {self._count}")
        self._started = asyncio.Event()
        self.origin_s = 0.0

    @asynccontextmanager
    async def boot(self) -> AsyncIterator[None]:
        """Limit how many programs boot at once. Call `go` afterwards, unless booting fails."""
        await self._waiting.acquire()
        try:
            async with self._cores:
                yield
        except BaseException:
            self._waiting.release()
            raise
        finally:
            self._first -= 1
            if self._first > 0:
                self._on_stage(f"starting agents, {self._count - self._first} of {self._count}")
            elif not self._first:
                self._on_stage("running agents")
                self.origin_s = asyncio.get_running_loop().time() + START_DELAY_S
                self._on_start(self.origin_s)
                self._started.set()

    @asynccontextmanager
    async def go(self, arrival_s: float | None) -> AsyncIterator[float]:
        """Wait for the arrival, or in a closed loop for a slot. Yields the arrival time."""
        try:
            await self._started.wait()
            if arrival_s is None:
                await self._in_flight.acquire()
            elif (delay_s := arrival_s - self.now_s()) > 0:
                await asyncio.sleep(delay_s)
        finally:
            self._waiting.release()
        try:
            yield self.now_s() if arrival_s is None else arrival_s
        finally:
            if arrival_s is None:
                self._in_flight.release()

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self.origin_s
