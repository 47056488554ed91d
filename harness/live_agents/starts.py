"""When the process of a program boots, and when the program begins.

Processes boot ahead of their arrival, a few for each core at a time, and the cell's clock starts
when the first of them have booted, so that they take no core from what is measured. Times in
seconds on that clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

AHEAD = 32
"""Programs that have booted, or are at it, and do not run yet."""
START_S = 0.2


class Starts:
    def __init__(
        self, programs: int, in_flight: int | None, cores: int, begin: Callable[[float], None]
    ) -> None:
        """`in_flight`: of programs without an arrival. `begin` is told time 0, on the machine's
        monotonic clock."""
        self._begin = begin
        self._ahead = asyncio.Semaphore(AHEAD)
        self._cores = asyncio.Semaphore(cores)
        self._room = asyncio.Semaphore(in_flight or programs)
        self._first = min(AHEAD, programs)
        """Of those that boot before time 0, how many are not through."""
        self._begun = asyncio.Event()
        self.origin_s = 0.0

    @asynccontextmanager
    async def boot(self) -> AsyncIterator[None]:
        """Then comes `go`, unless it fails."""
        await self._ahead.acquire()
        try:
            async with self._cores:
                yield
        except BaseException:
            self._ahead.release()
            raise
        finally:
            self._first -= 1
            if not self._first:
                self.origin_s = asyncio.get_running_loop().time() + START_S
                self._begin(self.origin_s)
                self._begun.set()

    @asynccontextmanager
    async def go(self, arrival_s: float | None) -> AsyncIterator[float]:
        """At its arrival, or once there is room: yields when that was."""
        try:
            await self._begun.wait()
            if arrival_s is None:
                await self._room.acquire()
            elif (delay_s := arrival_s - self.now_s()) > 0:
                await asyncio.sleep(delay_s)
        finally:
            self._ahead.release()
        try:
            yield self.now_s() if arrival_s is None else arrival_s
        finally:
            if arrival_s is None:
                self._room.release()

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self.origin_s
