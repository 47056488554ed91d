"""One cell of real agents: a process per program, let go at its arrival, its requests through us.

In: servers, a job with its `AgentPlan`. Out: a line per turn as `harness.gateway` records them, a
line per program in `programs.jsonl`, predictions in SWE-bench's format, and a summary. Times are
seconds on the cell's clock, which starts when the first process had time to boot.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from agents.agent import Launch, read_result
from agents.container import Containers
from agents.processes import Broken, Process
from agents.sandbox import INSIDE_PORT, Bubblewrap
from agents.workspace import make_workspace, remove_workspace
from harness.client import API_KEY
from harness.course import Line
from harness.doctor import cpu_cores
from harness.engine import Job
from harness.gateway import Backend, Gateway, serve_gateway
from harness.gateway.guided import Guide
from harness.live import Replica
from harness.names import slug
from harness.run_folder import Lines, make_folder
from traces import Program

AHEAD_S = 20.0
"""Before its arrival a program's process begins to boot."""
START_S = 0.2
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAME_CHARS = 60


@dataclass(slots=True)
class _Ended:
    """How a program ended."""

    started_s: float | None = None
    finished_s: float | None = None
    exit_code: int | None = None
    error: str | None = None
    """Why it does not count as finished."""
    told: bool = False
    """The gateway knows."""


class _Agents:
    def __init__(
        self,
        job: Job,
        gateway: Gateway,
        base_url: str,
        socket: Path,
        model: str,
        origin_s: float,
        turns: Counter[str],
        containers: Containers | None,
    ) -> None:
        """`turns`: so far, by program."""
        if job.agents is None:
            raise RuntimeError("a job without agents")
        self._job, self._plan, self._gateway = job, job.agents, gateway
        self._base_url, self._socket, self._model = base_url, socket, model
        self._folder = job.folder / "agents"
        self._origin_s = origin_s
        self._containers = containers
        self._turns = turns
        self._booting = asyncio.Semaphore(cpu_cores())
        """Many at once would only take the engine's cores."""
        self._programs = Lines(job.folder / "programs.jsonl")
        self._predictions = Lines(job.folder / "predictions.jsonl")
        self.statuses: Counter[str] = Counter()
        self.finished = 0

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as programs:
                room = asyncio.Semaphore(self._job.in_flight or len(self._job.programs))
                none: list[float | None] = [None] * len(self._job.programs)
                starts_s = none if self._job.starts_s is None else self._job.starts_s
                for place, program in enumerate(self._job.programs):
                    programs.create_task(self._one(place, program, starts_s[place], room))
        finally:
            self._programs.close()
            self._predictions.close()

    async def _one(
        self, place: int, program: Program, arrival_s: float | None, room: asyncio.Semaphore
    ) -> None:
        """`arrival_s` None: as soon as there is room."""
        if arrival_s is not None:
            await self._until(arrival_s - (AHEAD_S if self._plan.agent.ahead else 0.0))
        async with room:
            folder = self._folder / f"{place:05d}-{slug(program.id)[:NAME_CHARS]}"
            launch = await asyncio.to_thread(self._prepare, program, folder)
            ended = await self._live(program, launch, folder, arrival_s)
            await self._over(program, ended)
            await self._keep(program, folder, arrival_s, ended)
            await asyncio.to_thread(remove_workspace, Path(launch.workspace))

    async def _live(
        self, program: Program, launch: Launch, folder: Path, arrival_s: float | None
    ) -> _Ended:
        plan, ended = self._plan, _Ended()
        command, env = self._confined(launch)
        if not plan.agent.ahead and arrival_s is not None:
            await self._until(arrival_s)
        try:
            async with Process(command, env, Path(launch.workspace), folder / "log") as process:
                if plan.agent.ahead:
                    async with self._booting:
                        await process.ready()
                    if arrival_s is not None:
                        await self._until(arrival_s)
                ended.started_s = self._now_s()
                late_s = 0.0 if arrival_s is None else ended.started_s - arrival_s
                self._gateway.late(program.id, late_s)
                process.go()
                try:
                    async with asyncio.timeout(plan.task_limit_s):
                        ended.exit_code = await process.ended()
                except TimeoutError:
                    ended.error = f"the program was ended at its limit of {plan.task_limit_s:g} s"
                    # While its request may still be under way: that is the turn that failed.
                    await self._gateway.gave_up(program.id, ended.error)
                    ended.told = True
        except Broken as broken:
            ended.error = f"the agent's process {broken}"
        except (OSError, ValueError) as error:  # a task too long for a command line, or with a NUL
            why = getattr(error, "strerror", None) or error
            ended.error = f"the agent's process cannot be started: {why}"
        ended.finished_s = self._now_s()
        if ended.exit_code:
            ended.error = f"the agent's process exited with code {ended.exit_code}"
        return ended

    async def _over(self, program: Program, ended: _Ended) -> None:
        if ended.error is None and not self._turns[program.id]:
            ended.error = "the agent ended without a request"
        if ended.error is None:
            self.finished += 1
            await self._gateway.end(program.id)
        elif not ended.told:
            await self._gateway.gave_up(program.id, ended.error)

    async def _keep(
        self, program: Program, folder: Path, arrival_s: float | None, ended: _Ended
    ) -> None:
        result, task = read_result(folder), self._plan.tasks[program.id]
        status = result.exit_status or ("" if ended.error is None else "ended by us")
        self.statuses[status] += 1
        self._programs.append(
            {
                "program_id": program.id,
                "task_id": task.id,
                "arrival_s": ended.started_s if arrival_s is None else arrival_s,
                "started_s": ended.started_s,
                "finished_s": ended.finished_s,
                "exit_code": ended.exit_code,
                "exit_status": status,
                "error": ended.error,
            }
        )
        self._programs.flush()
        named = f"{self._model}/{self._plan.agent.name}/{self._job.variant.name}"
        patch = {"model_name_or_path": named, "model_patch": result.submission}
        self._predictions.append({"instance_id": task.id, **patch})
        self._predictions.flush()

    def _prepare(self, program: Program, folder: Path) -> Launch:
        plan, task = self._plan, self._plan.tasks[program.id]
        workspace = folder / "workspace"
        make_folder(folder)
        make_workspace(workspace, task.workspace)
        inside = isinstance(plan.sandbox, Bubblewrap) and not plan.sandbox.network
        reached = f"http://127.0.0.1:{INSIDE_PORT}" if inside else self._base_url
        launch = Launch(
            program_id=program.id,
            task=task.text,
            base_url=f"{reached}/programs/{quote(program.id, safe='')}/v1",
            model=self._model,
            workspace=str(workspace.absolute()),
            folder=str(folder.absolute()),
            max_turns=len(program.turns) if plan.guided else None,
            environment=self._environment(task.image, workspace),
            config=None if plan.config is None else str(plan.config.absolute()),
        )
        launch.write()
        return launch

    def _environment(self, image: str | None, workspace: Path) -> Mapping[str, object]:
        containers = self._containers
        if containers is not None:
            where = {"executable": containers.executable, "run_args": containers.run_args()}
            return {"environment_class": "docker", **({"image": image} if image else {}), **where}
        return {"environment_class": "local", "cwd": str(workspace.absolute())}

    def _confined(self, launch: Launch) -> tuple[list[str], dict[str, str]]:
        """The process's command line and environment."""
        plan = self._plan
        command = plan.agent.command(Path(launch.folder) / "launch.json")
        env = {
            "OPENAI_BASE_URL": launch.base_url,
            "OPENAI_API_BASE": launch.base_url,
            "OPENAI_API_KEY": "none",
            **plan.agent.env(),
        }
        if not isinstance(plan.sandbox, Bubblewrap):
            ours = {name: value for name, value in os.environ.items() if name != API_KEY}
            return command, {**ours, **env}
        readable = list(plan.agent.readable())
        if plan.config is not None:
            readable.append(plan.config.absolute())
        confined = plan.sandbox.wrap(
            command,
            env={"PATH": PATH, "HOME": launch.folder, "LANG": "C.UTF-8", **env},
            workspace=Path(launch.workspace),
            writable=[Path(launch.folder)],
            readable=readable,
            socket=None if plan.sandbox.network else self._socket,
        )
        return confined, {"PATH": os.environ.get("PATH", PATH)}

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._origin_s

    async def _until(self, at_s: float) -> None:
        if (delay_s := at_s - self._now_s()) > 0:
            await asyncio.sleep(delay_s)


async def run_agents(
    replicas: Sequence[Replica],
    job: Job,
    *,
    model: str,
    vocabulary: range,
    seed: int,
    tagged: bool,
    api_key: str | None,
    on_turn: Callable[[Line], None],
    on_event: Callable[[Line], None],
) -> Line:
    """Run all programs to their end. `tagged`: the servers take `vllm_xargs`. Returns the contents
    of done.json. When cancelled, every process is ended, and turns under way get their line."""
    if job.agents is None:
        raise RuntimeError("a job without agents")
    guide = Guide(job.programs, vocabulary, seed) if job.agents.guided else None
    backends = [Backend(replica.base_url, tagged, replica.events) for replica in replicas]
    first_s = job.starts_s[0] if job.starts_s else 0.0
    boot_s = max(AHEAD_S - first_s, 0.0) if job.agents.agent.ahead and job.starts_s else 0.0
    origin_s = asyncio.get_running_loop().time() + START_S + boot_s
    turns: Counter[str] = Counter()
    failed = 0

    def count(line: Line) -> None:
        nonlocal failed
        failed += line["error"] is not None
        turns[line["program_id"]] += 1
        on_turn(line)

    make_folder(job.folder / "agents")
    socket = (job.folder / "agents" / "gateway.sock").absolute()
    gateway = Gateway(backends, count, api_key, guide=guide, on_event=on_event, origin_s=origin_s)
    containers = _containers(job)
    async with serve_gateway(gateway, socket=socket) as base_url:
        agents = _Agents(job, gateway, base_url, socket, model, origin_s, turns, containers)
        with containers.ending_with_us(socket.with_name("log")) if containers else nullcontext():
            await agents.run()
        live_s = asyncio.get_running_loop().time() - origin_s
    return {
        "finished_programs": agents.finished,
        "failed_turns": failed,
        "live_s": live_s,
        "started_monotonic_s": origin_s,
        "exit_statuses": dict(sorted(agents.statuses.items())),
    }


def _containers(job: Job) -> Containers | None:
    sandbox = job.agents.sandbox if job.agents else None
    return replace(sandbox, folder=job.folder) if isinstance(sandbox, Containers) else None
