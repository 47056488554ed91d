"""The memory and the turns of several engines together.

In: the engines, and which of them have computed since. Out: their `Usage` in sum. Only engines that
have changed are read again, since a replay samples the usage often and there may be thousands of
replicas of which few change in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.sim.engine import Engine
from servers.sim.sequence import Usage


class FleetUsage:
    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._used = [0] * len(engines)
        """Blocks in use on each replica."""
        self._latest = [engine.usage() for engine in engines]
        self._changed: set[int] = set()
        self._pinned = self._waiting = self._running = self._dram = self._ssd = 0

    def changed(self, index: int) -> None:
        """Report that an engine has computed, or has ended a turn."""
        self._changed.add(index)

    def total(self, now_s: float, held: int) -> Usage:
        """Return the sums over all replicas; `held` turns wait at the router."""
        for index in self._changed:
            self._read(index)
        self._changed.clear()
        return Usage(
            now_s,
            sum(self._used),
            self._pinned,
            self._waiting + held,
            self._running,
            self._dram,
            self._ssd,
            tuple(self._used),
        )

    def _read(self, index: int) -> None:
        before, now = self._latest[index], self._engines[index].usage()
        self._latest[index] = now
        self._used[index] = now.used_blocks
        self._pinned += now.pinned_blocks - before.pinned_blocks
        self._waiting += now.waiting - before.waiting
        self._running += now.running - before.running
        self._dram += now.dram_blocks - before.dram_blocks
        self._ssd += now.ssd_blocks - before.ssd_blocks
