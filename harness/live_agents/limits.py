"""What a program of a live agent may use up of time, memory and disk, looked at while it runs.

Each is looked at by itself, since to count files may take minutes.
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

LOOK_EVERY_S = 0.5
"""How long a program may have more than its share of memory, or of the disk."""


class ProgramLimits:
    """Of a cell's programs."""

    def __init__(
        self, limit_s: float, sandbox: Bubblewrap | Containers | None, programs: int
    ) -> None:
        self._limit_s, self._sandbox = limit_s, sandbox
        # A count waits for no other program's.
        self._counting = ThreadPoolExecutor(max(1, programs), "files")

    def close(self) -> None:
        self._counting.shutdown(wait=False, cancel_futures=True)

    async def passed(self, pid: int, folder: Path, since_s: float) -> str:
        """Returns when one is, and says which. `pid`: the root of its processes. `folder`: with
        all files of it. `since_s`: how long it has run. Raises an OSError."""
        looks = {asyncio.create_task(self._time(since_s))}
        if self._sandbox is not None:
            looks.add(asyncio.create_task(self._memory(self._sandbox, pid)))
            looks.add(asyncio.create_task(self._disk(self._sandbox, pid, folder)))
        try:
            done, _ = await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for look in looks:
                look.cancel()

    async def _time(self, since_s: float) -> str:
        await asyncio.sleep(self._limit_s - since_s)
        return f"{self._limit_s:g} s"

    async def _memory(self, sandbox: Bubblewrap | Containers, pid: int) -> str:
        most = sandbox.limits.memory_bytes
        while await asyncio.to_thread(memory_of, pid, most) <= most:
            await asyncio.sleep(LOOK_EVERY_S)
        return f"{most / (1 << 30):g} GiB of memory"

    async def _disk(self, sandbox: Bubblewrap | Containers, pid: int, folder: Path) -> str:
        loop = asyncio.get_running_loop()
        files = await loop.run_in_executor(self._counting, _files, sandbox, pid, folder)
        while True:
            for each in files:
                limit = await loop.run_in_executor(self._counting, each.exceeded_limit)
                if limit is not None:
                    return limit
            await asyncio.sleep(LOOK_EVERY_S)


def _files(sandbox: Bubblewrap | Containers, pid: int, folder: Path) -> list[DiskUsage]:
    of_folder = DiskUsage(folder, sandbox.limits.disk_bytes, partial(program_usage, folder, pid))
    if isinstance(sandbox, Bubblewrap):
        return [of_folder]
    written = sandbox.disk_usage(folder.name)
    return [of_folder, *([written] if written else [])]
