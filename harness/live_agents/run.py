"""Runs one cell of real agents: a process per program, started at its arrival, behind a gateway.

In: servers, and a job with its `AgentPlan`. Out: a `TurnRecord` per turn (`harness.gateway`), a
line per program in `programs.jsonl`, predictions in SWE-bench's format, and a summary.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from agents.agent import Launch, read_result
from agents.processes import Process
from agents.sandbox.container import Containers
from agents.workspace import remove_workspace
from harness.cells.folder import Lines
from harness.cells.job import Job
from harness.gateway import Gateway, serve_gateway
from harness.gateway.access import Access
from harness.gateway.guided import Guide
from harness.gateway.serving import program_socket, tune_garbage_collector
from harness.live_agents.launch import WORKSPACE, AgentLaunches, ProgramLimits, readable
from harness.live_agents.starts import Starts
from harness.replay.http import api_key
from harness.replay.live_server import Service
from servers.basics.atomic import make_folder
from servers.basics.cores import cpu_cores
from servers.basics.errors import AgentStartError, CellFailed
from servers.records.done import DoneRecord
from servers.records.turns import TurnRecord
from servers.routers.sticky import Sticky
from servers.routing import NamedRouter
from traces import Program


@dataclass(slots=True)
class _ProgramRun:
    arrival_s: float | None
    started_s: float | None = None
    finished_s: float | None = None
    exit_code: int | None = None
    error: str | None = None
    """The reason why the program failed; None if it finished."""
    last_log_line: str = ""
    abandoned: bool = False
    """Whether the harness ended the program, by `Gateway.abandon`, with the error."""


class _Agents:
    def __init__(
        self,
        job: Job,
        gateway: Gateway,
        launches: AgentLaunches,
        turns: Counter[str],
        lost_reason: Callable[[], str | None],
    ) -> None:
        """`turns`: number of recorded turns by program; updated by the caller."""
        self._lost_reason = lost_reason
        self._job, self._plan, self._gateway = job, launches.plan, gateway
        self._launches = launches
        self._turns = turns
        self.starts = Starts(
            len(job.programs), job.in_flight, cpu_cores(), gateway.set_origin, job.on_stage
        )
        self._programs = Lines(job.folder / "programs.jsonl")
        self._predictions = Lines(job.folder / "predictions.jsonl")
        sandbox = launches.containers or launches.plan.sandbox
        self._limits = ProgramLimits(launches.plan.task_limit_s, sandbox, len(job.programs))
        self.statuses: Counter[str] = Counter()
        self.finished = 0
        self.first_error: str | None = None

    async def run(self) -> None:
        arrivals = self._job.starts_s
        try:
            async with asyncio.TaskGroup() as programs:
                for index, program in enumerate(self._job.programs):
                    arrival_s = None if arrivals is None else arrivals[index]
                    programs.create_task(self._run_program(index, program, _ProgramRun(arrival_s)))
        finally:
            self._limits.close()
            self._programs.close()
            self._predictions.close()

    async def _run_program(self, index: int, program: Program, run: _ProgramRun) -> None:
        async with AsyncExitStack() as resources:
            try:
                await self._run_process(index, program, run, resources)
            except asyncio.CancelledError:
                if (reason := self._lost_reason()) is not None and run.started_s is not None:
                    await self._gateway.abandon(program.id, reason)
                raise
            except AgentStartError as error:
                run.error = f"the agent's process {error}"
            except (OSError, ValueError) as error:  # e.g. a missing path, or a task with a NUL
                run.error = f"the agent's process cannot be started: {_start_error(error)}"
        run.finished_s = self.starts.now_s()
        if run.error is None and not self._turns[program.id]:
            run.error = f"the agent ended without a turn{run.last_log_line}"
        if run.error is None:
            self.finished += 1
            await self._gateway.end(program.id)
        elif not run.abandoned:
            await self._gateway.abandon(program.id, run.error)
        self._record_program(index, program, run)
        folder, containers = self._launches.folder_of(index, program), self._launches.containers
        if containers and run.error is not None:
            await asyncio.to_thread(containers.remove_program, folder.name)
        await asyncio.to_thread(remove_workspace, folder / WORKSPACE)

    async def _run_process(
        self, index: int, program: Program, run: _ProgramRun, resources: AsyncExitStack
    ) -> None:
        boots_early = self._plan.agent.boots_early
        async with self.starts.boot():
            launch = await asyncio.to_thread(self._launches.prepare, index, program)
            if launch.socket is not None:
                own_socket = program_socket(self._gateway, Path(launch.socket), program.id)
                await resources.enter_async_context(own_socket)
            process = self._process(launch, resources)
            if boots_early:
                await resources.enter_async_context(process)
                await process.ready()
        async with self.starts.go(run.arrival_s) as run.arrival_s:
            run.started_s = self.starts.now_s()
            self._gateway.set_lateness(program.id, run.started_s - run.arrival_s)
            if not boots_early:
                await resources.enter_async_context(process)
            process.start_task()
            await self._watch(program, run, process, Path(launch.folder))

    def _process(self, launch: Launch, resources: AsyncExitStack) -> Process:
        key = resources.enter_context(self._gateway.access.issue_key(launch.program_id))
        command, env = self._launches.process(launch, key)
        return Process(command, env, Path(launch.workspace), Path(launch.folder) / "log")

    async def _watch(
        self, program: Program, run: _ProgramRun, process: Process, folder: Path
    ) -> None:
        """Wait until the process exits. If it exceeds a limit, fail its active turn."""
        ended = asyncio.create_task(process.wait())
        elapsed_s = self.starts.now_s() - (run.started_s or 0.0)
        exceeded = asyncio.create_task(self._limits.exceeded(process.pid, folder, elapsed_s))
        try:
            await asyncio.wait({ended, exceeded}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                run.error = f"the program exceeded its limit of {exceeded.result()}"
                await self._gateway.abandon(program.id, run.error)
                run.abandoned = True
                return
            run.exit_code, run.last_log_line = ended.result(), process.last_log_line()
            if run.exit_code:
                run.error = (
                    f"the agent's process exited with code {run.exit_code}{run.last_log_line}"
                )
        finally:
            ended.cancel()
            exceeded.cancel()

    def _record_program(self, index: int, program: Program, run: _ProgramRun) -> None:
        result = read_result(self._launches.folder_of(index, program))
        task = self._plan.tasks[program.id]
        status = result.exit_status or _default_status(run)
        self.statuses[status] += 1
        self.first_error = self.first_error or run.error
        self._programs.append(
            {
                "program_id": program.id,
                "task_id": task.id,
                "arrival_s": run.arrival_s,
                "started_s": run.started_s,
                "finished_s": run.finished_s,
                "exit_code": run.exit_code,
                "exit_status": status,
                "error": run.error,
            }
        )
        self._programs.flush()
        if program.id != task.id:
            return  # the program is a copy; an evaluation accepts one prediction per task
        agent, variant = self._plan.agent.name, self._job.variant.name
        self._predictions.append(
            {
                "instance_id": task.id,
                "model_name_or_path": f"{self._launches.model}/{agent}/{variant}",
                "model_patch": result.submission,
            }
        )
        self._predictions.flush()


def _start_error(error: OSError | ValueError) -> str:
    if getattr(error, "errno", None) == errno.E2BIG:
        return "its task is too long for a command line; read it from {folder}/launch.json instead"
    return getattr(error, "strerror", None) or str(error)


def _default_status(run: _ProgramRun) -> str:
    if run.abandoned:
        return "ended by the harness"
    if run.exit_code:
        return f"exited with code {run.exit_code}"
    return "not reported" if run.error is None else "did not run"


async def run_agents(
    service: Service, job: Job, lost_reason: Callable[[], str | None]
) -> DoneRecord:
    """Run all programs to their end. Returns the contents of done.json.

    On cancellation all processes are ended. If `lost_reason()` returns a reason then, active turns
    are recorded with it as their error.
    """
    plan = job.agents
    if plan is None:
        raise RuntimeError("the job has no agents")
    turns: Counter[str] = Counter()
    failed = 0

    def count(record: TurnRecord) -> None:
        nonlocal failed
        failed += record.error is not None
        turns[record.program_id] += 1
        job.on_turn(record)

    guide = Guide(job.programs, service.vocabulary, service.seed) if plan.guided else None
    gateway = Gateway(
        service.servers,
        count,
        api_key(),
        guide=guide,
        on_event=job.on_event,
        access=Access(keyed=True),
        router=job.variant.router if isinstance(job.variant.router, NamedRouter) else Sticky,
        counter=service.counter,
    )
    folder = job.folder.absolute() / "agents"
    make_folder(folder)
    folder.chmod(0o700)
    containers = None
    if isinstance(plan.sandbox, Containers):
        containers = replace(plan.sandbox, folder=folder)
    tune_garbage_collector()
    async with serve_gateway(gateway) as base_url:
        launches = AgentLaunches(plan, folder, service.model, base_url, containers, readable(plan))
        agents = _Agents(job, gateway, launches, turns, lost_reason)
        with containers.cleaned_up(folder / "log") if containers else nullcontext():
            await agents.run()
        if gateway.router_error is not None:
            raise CellFailed(str(gateway.router_error))
        if not agents.finished:  # the cell has no result and is run again
            raise CellFailed(f"no program finished; the first error: {agents.first_error}")
        live_s = agents.starts.now_s()
    return DoneRecord(
        finished_programs=agents.finished,
        failed_turns=failed,
        live_s=live_s,
        started_monotonic_s=agents.starts.origin_s,
        exit_statuses=dict(sorted(agents.statuses.items())),
    )
