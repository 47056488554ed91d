"""Limits of an agent program's time, memory and disk space, checked while it runs.

Each limit is checked in its own task, because counting files may take minutes.
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
    """Checks the limits of a cell's programs."""

    def __init__(
        self, limit_s: float, sandbox: Bubblewrap | Containers | None, programs: int
    ) -> None:
        self._limit_s, self._sandbox = limit_s, sandbox
        # One thread per program, so that no count waits for another program's.
        self._counting = ThreadPoolExecutor(max(1, programs), "files")

    def close(self) -> None:
        self._counting.shutdown(wait=False, cancel_futures=True)

    async def exceeded(self, pid: int, folder: Path, since_s: float) -> str:
        """Wait until the program exceeds a limit, and returns the limit as text.

        `pid`: the root of its processes. `folder`: the folder with all its files. `since_s`: the
        time that it has run already. Raises an OSError if the usage cannot be read.
        """
        checks = {asyncio.create_task(self._time(since_s))}
        if self._sandbox is not None:
            checks.add(asyncio.create_task(self._memory(self._sandbox, pid)))
            checks.add(asyncio.create_task(self._disk(self._sandbox, pid, folder)))
        try:
            done, _ = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for check in checks:
                check.cancel()

    async def _time(self, since_s: float) -> str:
        await asyncio.sleep(self._limit_s - since_s)
        return f"{self._limit_s:g} s"

    async def _memory(self, sandbox: Bubblewrap | Containers, pid: int) -> str:
        limit_bytes = sandbox.limits.memory_bytes
        while await asyncio.to_thread(memory_of, pid, limit_bytes) <= limit_bytes:
            await asyncio.sleep(CHECK_INTERVAL_S)
        return f"{limit_bytes / (1 << 30):g} GiB of memory"

    async def _disk(self, sandbox: Bubblewrap | Containers, pid: int, folder: Path) -> str:
        loop = asyncio.get_running_loop()
        files = await loop.run_in_executor(self._counting, _files, sandbox, pid, folder)
        while True:
            for each in files:
                limit = await loop.run_in_executor(self._counting, each.exceeded_limit)
                if limit is not None:
                    return limit
            await asyncio.sleep(CHECK_INTERVAL_S)


def _files(sandbox: Bubblewrap | Containers, pid: int, folder: Path) -> list[DiskUsage]:
    of_folder = DiskUsage(folder, sandbox.limits.disk_bytes, partial(program_usage, folder, pid))
    if isinstance(sandbox, Bubblewrap):
        return [of_folder]
    written = sandbox.disk_usage(folder.name)
    return [of_folder, *([written] if written else [])]
