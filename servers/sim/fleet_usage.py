"""The memory and the turns of several engines: in sum, and as each reports them to the router.

In: the engines, and which of them have computed since. Only those are read again, since a replay
samples the usage often, a router may want fresh reports at each turn, and of thousands of replicas
few change in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.basics.clock import seconds
from servers.routers.base import Replica
from servers.sim.engine import Engine
from servers.sim.sequence import EngineUsage


class FleetUsage:
    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._used = [0] * len(engines)
        """Blocks in use on each replica."""
        self._latest = [engine.usage() for engine in engines]
        self._changed: set[int] = set()
        self._unreported: set[int] = set()
        """Engines that compute, or have computed since their latest report."""
        self._pinned = self._waiting = self._running = self._dram = self._ssd = 0

    def changed(self, index: int) -> None:
        """Note that an engine has begun or ended a batch, or ended a turn."""
        self._changed.add(index)
        self._unreported.add(index)

    def total(self, now_s: float, held: int) -> EngineUsage:
        """Return the sums over all replicas; `held` turns wait at the router."""
        for index in self._changed:
            self._read(index)
        self._changed.clear()
        return EngineUsage(
            now_s,
            sum(self._used),
            self._pinned,
            self._waiting + held,
            self._running,
            self._dram,
            self._ssd,
            tuple(self._used),
        )

    def report(self, replicas: Sequence[Replica], first: int, now_ps: int) -> None:
        """Let replicas report the loads of as many engines, from the index `first`. While an engine
        computes, its memory changes."""
        for index in [i for i in self._unreported if first <= i < first + len(replicas)]:
            engine, replica = self._engines[index], replicas[index - first]
            replica.running = len(engine.scheduler.running)
            replica.waiting = len(engine.scheduler.runner.waiting)
            replica.used_tokens = engine.used_blocks_at(now_ps) * engine.profile.block_tokens
            if not engine.is_busy:
                self._unreported.remove(index)
        now_s = seconds(now_ps)
        for replica in replicas:
            replica.reported_s = now_s

    def _read(self, index: int) -> None:
        before, now = self._latest[index], self._engines[index].usage()
        self._latest[index] = now
        self._used[index] = now.used_blocks
        self._pinned += now.pinned_blocks - before.pinned_blocks
        self._waiting += now.waiting - before.waiting
        self._running += now.running - before.running
        self._dram += now.dram_blocks - before.dram_blocks
        self._ssd += now.ssd_blocks - before.ssd_blocks
