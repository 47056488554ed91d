"""One cell of real agents: a process per program, let go at its arrival, its requests through us.

In: servers, a job with its `AgentPlan`. Out: a line per turn as `harness.gateway` records them, a
line per program in `programs.jsonl`, predictions in SWE-bench's format, and a summary.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.agent import Launch, read_result
from agents.processes import Process
from agents.sandbox.container import Containers
from agents.workspace import remove_workspace
from harness.cells.folder import Lines
from harness.cells.job import Job
from harness.gateway import Backend, Gateway, serve_gateway
from harness.gateway.access import Access
from harness.gateway.guided import Guide
from harness.gateway.serving import program_socket, tune_garbage_collector
from harness.installation import cpu_cores
from harness.live_agents.launch import WORKSPACE, Launches, readable
from harness.live_agents.limits import ProgramLimits
from harness.live_agents.starts import Starts
from harness.replay.live import Replica
from reports.run_folder.atomic import make_folder
from servers.errors import AgentStartError, CellFailed
from servers.records import EventRecord, TurnRecord
from traces import Program


@dataclass(slots=True)
class _Course:
    """Of one program."""

    arrival_s: float | None
    started_s: float | None = None
    finished_s: float | None = None
    exit_code: int | None = None
    error: str | None = None
    """Why it does not count as finished."""
    last_words: str = ""
    """The end of its log."""
    told: bool = False
    """The gateway knows that error."""


class _Agents:
    def __init__(
        self,
        job: Job,
        gateway: Gateway,
        launches: Launches,
        turns: Counter[str],
        given_up: Callable[[], str | None],
    ) -> None:
        """`turns`: so far, by program."""
        self._given_up = given_up
        self._job, self._plan, self._gateway = job, launches.plan, gateway
        self._launches = launches
        self._turns = turns
        self.starts = Starts(len(job.programs), job.in_flight, cpu_cores(), gateway.set_origin)
        self._programs = Lines(job.folder / "programs.jsonl")
        self._predictions = Lines(job.folder / "predictions.jsonl")
        sandbox = launches.containers or launches.plan.sandbox
        self._limits = ProgramLimits(launches.plan.task_limit_s, sandbox, len(job.programs))
        self.statuses: Counter[str] = Counter()
        self.finished = 0
        self._first_error: str | None = None

    def refuse_if_none_finished(self) -> None:
        """Such a cell says nothing, and is run again."""
        if not self.finished:
            raise CellFailed(f"no program finished; the first to end: {self._first_error}")

    async def run(self) -> None:
        arrivals = self._job.starts_s
        try:
            async with asyncio.TaskGroup() as programs:
                for place, program in enumerate(self._job.programs):
                    arrival_s = None if arrivals is None else arrivals[place]
                    programs.create_task(self._one(place, program, _Course(arrival_s)))
        finally:
            self._limits.close()
            self._programs.close()
            self._predictions.close()

    async def _one(self, place: int, program: Program, course: _Course) -> None:
        async with AsyncExitStack() as held:
            try:
                await self._live(place, program, course, held)
            except asyncio.CancelledError:
                if (why := self._given_up()) is not None and course.started_s is not None:
                    await self._gateway.abandon(program.id, why)
                raise
            except AgentStartError as broken:
                course.error = f"the agent's process {broken}"
            except (OSError, ValueError) as error:  # a path that is not there, a task with a NUL
                course.error = f"the agent's process cannot be started: {_why(error)}"
        course.finished_s = self.starts.now_s()
        if course.error is None and not self._turns[program.id]:
            course.error = f"the agent ended without a turn{course.last_words}"
        if course.error is None:
            self.finished += 1
            await self._gateway.end(program.id)
        elif not course.told:
            await self._gateway.abandon(program.id, course.error)
        self._keep(place, program, course)
        folder, containers = self._launches.folder_of(place, program), self._launches.containers
        if containers and course.error is not None:
            await asyncio.to_thread(containers.remove_program, folder.name)
        await asyncio.to_thread(remove_workspace, folder / WORKSPACE)

    async def _live(
        self, place: int, program: Program, course: _Course, held: AsyncExitStack
    ) -> None:
        ahead = self._plan.agent.boots_early
        async with self.starts.boot():
            launch = await asyncio.to_thread(self._launches.prepare, place, program)
            if launch.socket is not None:
                own = program_socket(self._gateway, Path(launch.socket), program.id)
                await held.enter_async_context(own)
            process = self._process(launch, held)
            if ahead:
                await held.enter_async_context(process)
                await process.ready()
        async with self.starts.go(course.arrival_s) as course.arrival_s:
            course.started_s = self.starts.now_s()
            self._gateway.set_lateness(program.id, course.started_s - course.arrival_s)
            if not ahead:
                await held.enter_async_context(process)
            process.start_task()
            await self._watch(program, course, process, Path(launch.folder))

    def _process(self, launch: Launch, held: AsyncExitStack) -> Process:
        key = held.enter_context(self._gateway.access.issue_key(launch.program_id))
        command, env = self._launches.process(launch, key)
        return Process(command, env, Path(launch.workspace), Path(launch.folder) / "log")

    async def _watch(
        self, program: Program, course: _Course, process: Process, folder: Path
    ) -> None:
        """Until it ends, or passes a limit: the turn that is under way then has failed with it."""
        ended = asyncio.create_task(process.wait())
        since_s = self.starts.now_s() - (course.started_s or 0.0)
        passed = asyncio.create_task(self._limits.passed(process.pid, folder, since_s))
        try:
            await asyncio.wait({ended, passed}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                course.error = f"the program was ended at its limit of {passed.result()}"
                await self._gateway.abandon(program.id, course.error)
                course.told = True
                return
            course.exit_code, course.last_words = ended.result(), process.last_log_line()
            if course.exit_code:
                code = f"exited with code {course.exit_code}"
                course.error = f"the agent's process {code}{course.last_words}"
        finally:
            ended.cancel()
            passed.cancel()

    def _keep(self, place: int, program: Program, course: _Course) -> None:
        result = read_result(self._launches.folder_of(place, program))
        task = self._plan.tasks[program.id]
        status = result.exit_status or _ending(course)
        self.statuses[status] += 1
        self._first_error = self._first_error or course.error
        self._programs.append(
            {
                "program_id": program.id,
                "task_id": task.id,
                "arrival_s": course.arrival_s,
                "started_s": course.started_s,
                "finished_s": course.finished_s,
                "exit_code": course.exit_code,
                "exit_status": status,
                "error": course.error,
            }
        )
        self._programs.flush()
        if program.id != task.id:
            return  # a copy: an evaluation takes one prediction per task
        agent, variant = self._plan.agent.name, self._job.variant.name
        named = f"{self._launches.model}/{agent}/{variant}"
        patch = {"model_name_or_path": named, "model_patch": result.submission}
        self._predictions.append({"instance_id": task.id, **patch})
        self._predictions.flush()


def _why(error: OSError | ValueError) -> str:
    if getattr(error, "errno", None) == errno.E2BIG:
        return "its task is too long for a command line; it stands in {folder}/launch.json too"
    return getattr(error, "strerror", None) or str(error)


def _ending(course: _Course) -> str:
    """Of an agent that left no word of its own."""
    if course.told:
        return "ended by the harness"
    if course.exit_code:
        return f"exited with code {course.exit_code}"
    return "said nothing" if course.error is None else "did not run"


async def run_agents(
    replicas: Sequence[Replica],
    job: Job,
    *,
    model: str,
    vocabulary: range,
    seed: int,
    tagged: bool,
    api_key: str | None,
    on_turn: Callable[[TurnRecord], None],
    on_event: Callable[[EventRecord], None],
    given_up: Callable[[], str | None] = lambda: None,
) -> dict[str, Any]:
    """Run all programs to their end. `tagged`: the servers take `vllm_xargs`. Returns the contents
    of done.json. When cancelled, every process is ended, and turns under way get their line, with
    `given_up()` as its error if it says why."""
    plan = job.agents
    if plan is None:
        raise RuntimeError("a job without agents")
    turns: Counter[str] = Counter()
    failed = 0

    def count(record: TurnRecord) -> None:
        nonlocal failed
        failed += record.error is not None
        turns[record.program_id] += 1
        on_turn(record)

    guide = Guide(job.programs, vocabulary, seed) if plan.guided else None
    backends = [Backend(replica.base_url, tagged, replica.events) for replica in replicas]
    access = Access(keyed=True)
    gateway = Gateway(backends, count, api_key, guide=guide, on_event=on_event, access=access)
    folder = job.folder.absolute() / "agents"
    make_folder(folder)
    folder.chmod(0o700)
    containers = None
    if isinstance(plan.sandbox, Containers):
        containers = replace(plan.sandbox, folder=folder)
    tune_garbage_collector()
    async with serve_gateway(gateway) as base_url:
        launches = Launches(plan, folder, model, base_url, containers, readable(plan))
        agents = _Agents(job, gateway, launches, turns, given_up)
        with containers.cleaned_up(folder / "log") if containers else nullcontext():
            await agents.run()
        agents.refuse_if_none_finished()
        live_s = agents.starts.now_s()
    return {
        "finished_programs": agents.finished,
        "failed_turns": failed,
        "live_s": live_s,
        "started_monotonic_s": agents.starts.origin_s,
        "exit_statuses": dict(sorted(agents.statuses.items())),
    }
