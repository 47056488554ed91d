"""Checks the time, memory and disk space of agent programs while they run.

Each limit has its own task, because counting files may take minutes.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from agents.sandbox.bubblewrap import Bubblewrap
from agents.sandbox.container import Containers
from agents.sandbox.files import DiskUsage, program_usage
from agents.sandbox.memory import memory_of

CHECK_INTERVAL_S = 0.5
"""Interval between two checks of memory or disk space."""


class ProgramLimits:
    def __init__(
        self, limit_s: float, sandbox: Bubblewrap | Containers | None, programs: int
    ) -> None:
        self._limit_s, self._sandbox = limit_s, sandbox
        # One thread per program, so that programs do not wait for each other's counts.
        self._counting = ThreadPoolExecutor(max(1, programs), "files")

    def close(self) -> None:
        self._counting.shutdown(wait=False, cancel_futures=True)

    async def exceeded(self, pid: int, folder: Path, elapsed_s: float) -> str:
        """Wait until the program exceeds a limit, and return the limit as text.

        `pid`: the root of its process tree. `folder`: contains all its files. `elapsed_s`: the time
        since its start. Raises OSError if the usage cannot be read.
        """
        checks = {asyncio.create_task(self._time(elapsed_s))}
        if self._sandbox is not None:
            checks.add(asyncio.create_task(self._memory(self._sandbox, pid)))
            checks.add(asyncio.create_task(self._disk(self._sandbox, pid, folder)))
        try:
            done, _ = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for check in checks:
                check.cancel()

    async def _time(self, elapsed_s: float) -> str:
        await asyncio.sleep(self._limit_s - elapsed_s)
        return f"{self._limit_s:g} s"

    async def _memory(self, sandbox: Bubblewrap | Containers, pid: int) -> str:
        limit_bytes = sandbox.limits.memory_bytes
        while await asyncio.to_thread(memory_of, pid, limit_bytes) <= limit_bytes:
            await asyncio.sleep(CHECK_INTERVAL_S)
        return f"{limit_bytes / (1 << 30):g} GiB of memory"

    async def _disk(self, sandbox: Bubblewrap | Containers, pid: int, folder: Path) -> str:
        loop = asyncio.get_running_loop()
        usages = await loop.run_in_executor(self._counting, _disk_usages, sandbox, pid, folder)
        while True:
            for usage in usages:
                limit = await loop.run_in_executor(self._counting, usage.exceeded_limit)
                if limit is not None:
                    return limit
            await asyncio.sleep(CHECK_INTERVAL_S)


def _disk_usages(sandbox: Bubblewrap | Containers, pid: int, folder: Path) -> list[DiskUsage]:
    of_folder = DiskUsage(folder, sandbox.limits.disk_bytes, partial(program_usage, folder, pid))
    if isinstance(sandbox, Bubblewrap):
        return [of_folder]
    in_containers = sandbox.disk_usage(folder.name)
    return [of_folder, *([in_containers] if in_containers else [])]
