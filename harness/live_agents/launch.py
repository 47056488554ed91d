"""Prepares the process of each agent program (its folder, launch file and sandbox), and checks its
time, memory and disk space while it runs.

In: a job's `AgentPlan`, and the URL of its gateway. Out: a `Launch` per program, and the command
line and environment of its process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from agents.agent import Launch
from agents.sandbox.bubblewrap import Bubblewrap
from agents.sandbox.container import Containers
from agents.sandbox.files import DiskUsage, program_usage
from agents.sandbox.memory import memory_of
from agents.workspace import make_workspace
from harness.load.agent_plan import AgentPlan
from harness.replay.http import without_proxy
from servers.basics.atomic import make_folder
from servers.basics.redact import is_secret_name
from servers.basics.text import slug
from traces import Program

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
        # Each limit has its own task, because counting files may take minutes.
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


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAME_CHARS = 60
WORKSPACE = "workspace"


def readable(plan: AgentPlan) -> tuple[Path, ...]:
    """Return the paths outside its folder that an agent in bubblewrap may read.

    This runs the agent's Python, which would block an event loop for too long.
    """
    if not isinstance(plan.sandbox, Bubblewrap):
        return ()
    config = [plan.config.absolute()] if plan.config else []
    return (*plan.agent.readable(), *plan.reads, *config)


@dataclass(frozen=True, slots=True)
class AgentLaunches:
    plan: AgentPlan
    folder: Path
    """Absolute path of the parent of all programs' folders."""
    model: str
    base_url: str
    containers: Containers | None
    readable: tuple[Path, ...]
    """Result of the function `readable`, which is the same for all programs."""

    def folder_of(self, index: int, program: Program) -> Path:
        return self.folder / f"{index:05d}-{slug(program.id)[:NAME_CHARS]}"

    def prepare(self, index: int, program: Program) -> Launch:
        """Create the program's folder and workspace, and write `launch.json` into the folder."""
        plan, task = self.plan, self.plan.tasks[program.id]
        folder = self.folder_of(index, program)
        workspace = folder / WORKSPACE
        make_folder(folder)
        make_workspace(workspace, task.workspace)
        bubblewrap = plan.sandbox if isinstance(plan.sandbox, Bubblewrap) else None
        gateway_url = bubblewrap.gateway_url(self.base_url) if bubblewrap else self.base_url
        launch = Launch(
            program_id=program.id,
            task=task.text,
            base_url=f"{gateway_url}/programs/{quote(program.id, safe='')}/v1",
            model=self.model,
            workspace=str(workspace),
            folder=str(folder),
            max_turns=len(program.turns) if plan.guided else None,
            environment=self._environment(task.image, workspace, folder.name),
            socket=f"{folder}.sock" if bubblewrap and not bubblewrap.network else None,
            config=None if plan.config is None else str(plan.config.absolute()),
        )
        launch.write()
        return launch

    def _environment(self, image: str | None, workspace: Path, name: str) -> Mapping[str, object]:
        containers = self.containers
        if containers is None:
            return {"environment_class": "local", "cwd": str(workspace)}
        docker = {"executable": containers.executable, "run_args": containers.run_args(name)}
        return {"environment_class": "docker", **({"image": image} if image else {}), **docker}

    def process(self, launch: Launch, key: str) -> tuple[list[str], dict[str, str]]:
        """Return the command line and environment. `key`: the program's API key for the gateway."""
        plan, agent = self.plan, self.plan.agent
        command = agent.command(launch.file)
        env = {
            "OPENAI_BASE_URL": launch.base_url,
            "OPENAI_API_BASE": launch.base_url,
            "OPENAI_API_KEY": key,
            **agent.env(),
        }
        if not isinstance(plan.sandbox, Bubblewrap):
            inherited = {
                name: value for name, value in os.environ.items() if not is_secret_name(name)
            }
            return command, without_proxy({**inherited, **env}, self.base_url)
        return plan.sandbox.wrap(
            command,
            env={"PATH": PATH, "HOME": launch.folder, **env},
            workspace=Path(launch.workspace),
            writable=[Path(launch.folder)],
            readable=self.readable,
            socket=None if launch.socket is None else Path(launch.socket),
        )
