"""Which agent runs, on what tasks, in which sandbox: `--agent` and its companions, resolved.

In: the options as given. Out: an `AgentPlan`, and the programs it runs. Guided: recorded programs,
whose answers the agent is handed. Otherwise tasks, and nobody knows yet what turns they will take.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.agent import Agent
from agents.command import command_agent
from agents.mini_swe_agent import MiniSweAgent
from agents.sandbox.bubblewrap import Bubblewrap, Limits
from agents.sandbox.container import Containers
from agents.tasks import Task, Tasks, read_tasks, tasks_of
from harness.load.arrivals import choose_programs
from harness.load.settings import Agents, SweepSettings
from harness.load.workload import Workload, load_workload
from harness.redact import hidden_settings
from servers.errors import InvalidInput
from servers.registry import Registry
from traces import Program

CONTAINERS = ("podman", "docker")
AGENTS = Registry(
    kind="agent",
    group="turnstile.agents",
    built_in={
        "mini-swe-agent": "agents.mini_swe_agent:MiniSweAgent",
        "openhands": "agents.openhands:OpenHands",
    },
    remedy="start any other with --agent-command",
    option="--agent",
)
"""Each is called with the path of the Python that `--agent-python` names, or None, and returns an
`Agent`."""
GB = 1 << 30
UNCONFINED = "--i-know-this-runs-model-commands-on-my-machine"


@dataclass(frozen=True, slots=True)
class AgentPlan:
    agent: Agent
    version: str
    tasks: Mapping[str, Task]
    """By program."""
    tasks_sha256: str
    guided: bool
    sandbox: Bubblewrap | Containers | None
    """None: on this machine, as the user wanted it in so many words."""
    config: Path | None
    task_limit_s: float
    reads: tuple[Path, ...] = ()
    """What the sandbox shows besides."""

    def as_json(self) -> dict[str, Any]:
        sandbox = self.sandbox
        return {
            "name": self.agent.name,
            "version": hidden_settings(self.version),
            "guided": self.guided,
            "tasks_sha256": self.tasks_sha256,
            "task_limit_s": self.task_limit_s,
            "reads": sorted(map(str, self.reads)),
            "config": None if self.config is None else _settings(self.config),
            "sandbox": None
            if sandbox is None
            else {
                "kind": type(sandbox).__name__.lower(),
                "network": sandbox.network,
                **asdict(sandbox.limits),
            },
        }

    def told(self) -> str:
        """In one line, for whoever starts it."""
        sandbox = type(self.sandbox).__name__.lower() if self.sandbox else "no sandbox"
        how = "answers from the trace (guided)" if self.guided else "answers from the model"
        limit = f"at most {self.task_limit_s:g} s a task"
        return f"agent {self.agent.name} {hidden_settings(self.version)}: {how}; {sandbox}, {limit}"


def plan_agents(
    settings: SweepSettings, longest_tokens: int | None, because: str
) -> tuple[AgentPlan, Workload]:
    """Raises a ValueError of one line."""
    wanted = settings.agent
    if wanted.name is None and wanted.command is None:
        raise InvalidInput(
            "options for agents, and no agent: name it with --agent or --agent-command"
        )
    if settings.engine in ("sim", "vllm-virtual"):
        raise InvalidInput(
            f"{wanted.asked_by}: agents need a live server; use --engine vllm or a server's URL"
        )
    agent = _agent(wanted)
    workload, tasks = _load(settings, longest_tokens, because)
    sandbox, by_program = _sandbox(wanted), _by_program(tasks, workload.programs)
    bare = next((task for task in by_program.values() if task.image is None), None)
    if isinstance(sandbox, Containers) and bare is not None:
        raise InvalidInput(
            f"--sandbox container: task {bare.id} names no image; add its image_name to --tasks"
        )
    version = agent.check()
    if wanted.config is not None and isinstance(agent, MiniSweAgent):
        agent.check_config(wanted.config)
    plan = AgentPlan(
        agent=agent,
        version=version,
        tasks=by_program,
        tasks_sha256=tasks.sha256,
        guided=wanted.guided,
        sandbox=sandbox,
        config=wanted.config,
        task_limit_s=wanted.task_limit_s,
        reads=wanted.readable,
    )
    return plan, workload


def _agent(wanted: Agents) -> Agent:
    if wanted.command is not None:
        if wanted.name is not None:
            raise InvalidInput("--agent and --agent-command: name one of them")
        if wanted.config is not None or wanted.python is not None:
            raise InvalidInput(
                "--agent-config and --agent-python: only with --agent; leave them out"
            )
        return command_agent(wanted.command)
    make: Callable[[str | None], Agent] = AGENTS.load(wanted.name or "")
    return make(wanted.python)


def _load(
    settings: SweepSettings, longest_tokens: int | None, because: str
) -> tuple[Workload, Tasks]:
    wanted = settings.agent
    if wanted.guided:
        if not settings.traces:
            raise InvalidInput("--guided: by what? Give trajectories with --traces")
        workload = load_workload(
            settings.traces,
            settings.programs,
            longest_tokens,
            because,
            refuse=settings.refuse_overlong,
            messages=True,
        )
        if mute := next((p for p in workload.programs if not p.messages), None):
            raise InvalidInput(
                f"program {mute.id}: its trace has no messages, and so no answers to hand to an "
                "agent; give trajectories with --traces"
            )
        if forked := next((p for p in workload.programs if p.fork), None):
            raise InvalidInput(f"program {forked.id}: sub-agents cannot be guided; leave them out")
        return workload, read_tasks(wanted.tasks) if wanted.tasks else tasks_of(workload.programs)
    if wanted.tasks is None:
        raise InvalidInput(
            f"{wanted.asked_by}: on what? Give --tasks FILE, or --guided with --traces"
        )
    if settings.traces:
        raise InvalidInput("--traces: only with --guided do agents read traces; leave it out")
    tasks = read_tasks(wanted.tasks)
    programs = tasks.programs()
    if settings.programs is not None:
        programs = tuple(choose_programs(programs, settings.programs))
    return Workload(tasks.name, programs, tasks.sha256, ()), tasks


def _settings(file: Path) -> str:
    try:
        return hidden_settings(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput(f"--agent-config {file}: not text in UTF-8") from None


def _by_program(tasks: Tasks, programs: Sequence[Program]) -> dict[str, Task]:
    by_id = {task.id: task for task in tasks.tasks}
    found = {}
    for program in programs:
        task = by_id.get(program.id) or by_id.get(program.id.partition("#")[0])
        if task is None:
            raise InvalidInput(f"--tasks: has no task for the recorded program {program.id}")
        found[program.id] = task
    return found


def _sandbox(wanted: Agents) -> Bubblewrap | Containers | None:
    limits = Limits(
        processes=wanted.processes,
        memory_bytes=int(wanted.memory_gb * GB),
        disk_bytes=int(wanted.disk_gb * GB),
    )
    if wanted.sandbox == "none":
        if not wanted.unconfined:
            raise InvalidInput(
                f"--sandbox none: commands of a model would run on this machine; add {UNCONFINED}, "
                "or use --sandbox bubblewrap"
            )
        return None
    if wanted.sandbox == "container":
        if wanted.name != "mini-swe-agent":
            raise InvalidInput(
                "--sandbox container: only mini-swe-agent runs its commands in containers"
            )
        executable = next(filter(shutil.which, CONTAINERS), CONTAINERS[0])
        containers = Containers(executable, Path(), limits, wanted.network)
        containers.check()
        return containers
    bubblewrap = Bubblewrap(limits, wanted.network)
    bubblewrap.check()
    return bubblewrap
