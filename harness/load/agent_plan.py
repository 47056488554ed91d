"""Resolve the settings of live agents: the agent, its tasks, and its sandbox.

In: `SweepSettings`. Out: an `AgentPlan` and the programs that it runs. A guided agent gets the
answers of recorded programs. Without guidance, each task is a program whose number of turns is not
known in advance.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.agent import Agent
from agents.command import command_agent
from agents.mini_swe_agent import MiniSweAgent
from agents.sandbox.bubblewrap import Bubblewrap, SandboxLimits
from agents.sandbox.container import Containers
from agents.tasks import Task, Tasks, read_tasks, tasks_of
from harness.load.arrivals import choose_programs
from harness.load.settings import Agents, Sandbox, SweepSettings
from harness.load.workload import Longest, Workload, load_workload
from servers.basics.errors import InvalidInput
from servers.basics.redact import redact_settings
from servers.basics.registry import Registry
from servers.records.settings import AgentRecord, Numbers
from traces import Program

CONTAINERS = ("podman", "docker")
AGENTS = Registry(
    kind="agent",
    group="turnstile.agents",
    built_in={
        "mini-swe-agent": "agents.mini_swe_agent:MiniSweAgent",
        "openhands": "agents.openhands:OpenHands",
    },
    remedy="start another agent with --agent-command",
    option="--agent",
)
"""Factories of an `Agent`, called with the value of `--agent-python`, which may be None."""
GB = 1 << 30
UNCONFINED = "--i-know-this-runs-model-commands-on-my-machine"


@dataclass(frozen=True, slots=True)
class AgentPlan:
    agent: Agent
    version: str
    tasks: Mapping[str, Task]
    """By program id."""
    tasks_sha256: str
    guided: bool
    sandbox: Bubblewrap | Containers | None
    """None: the user has confirmed that commands run without a sandbox."""
    config: Path | None
    task_limit_s: float
    reads: tuple[Path, ...] = ()
    """Additional paths that are readable in the sandbox."""

    def record(self) -> AgentRecord:
        return AgentRecord(
            name=self.agent.name,
            version=redact_settings(self.version),
            guided=self.guided,
            tasks_sha256=self.tasks_sha256,
            task_limit_s=self.task_limit_s,
            reads=tuple(sorted(map(str, self.reads))),
            config=None if self.config is None else _settings(self.config),
            sandbox=None if self.sandbox is None else _sandbox_record(self.sandbox),
        )

    def describe(self) -> str:
        """Return one line that describes the agents, for the user."""
        sandbox = type(self.sandbox).__name__.lower() if self.sandbox else "no sandbox"
        source = "trace (guided)" if self.guided else "model"
        return (
            f"agent {self.agent.name} {redact_settings(self.version)}: answers from the {source}; "
            f"{sandbox}, at most {self.task_limit_s:g} s per task"
        )


def plan_agents(settings: SweepSettings, longest: Longest) -> tuple[AgentPlan, Workload]:
    """Resolve the agent settings. `longest` is as in `load_workload`.

    Raises `InvalidInput` if settings contradict each other or need something not installed here.
    """
    agents = settings.agents
    if agents.agent is None and agents.agent_command is None:
        raise InvalidInput(
            "agent options without an agent; add --agent or --agent-command, or remove the options"
        )
    agent = _agent(agents)
    workload, tasks = _load(settings, longest)
    sandbox, by_program = _sandbox(agents), _by_program(tasks, workload.programs)
    without_image = next((task for task in by_program.values() if task.image is None), None)
    if isinstance(sandbox, Containers) and without_image is not None:
        raise InvalidInput(
            f"--sandbox container: task {without_image.id} has no image; add its image_name to "
            "--tasks"
        )
    version = agent.check()
    if agents.agent_config is not None and isinstance(agent, MiniSweAgent):
        agent.check_config(agents.agent_config)
    plan = AgentPlan(
        agent=agent,
        version=version,
        tasks=by_program,
        tasks_sha256=tasks.sha256,
        guided=agents.guided,
        sandbox=sandbox,
        config=agents.agent_config,
        task_limit_s=agents.task_limit_s,
        reads=agents.agent_reads,
    )
    return plan, workload


def _agent(agents: Agents) -> Agent:
    if agents.agent_command is not None:
        if agents.agent is not None:
            raise InvalidInput("--agent and --agent-command: give only one of them")
        if agents.agent_config is not None or agents.agent_python is not None:
            raise InvalidInput(
                "--agent-config and --agent-python: not supported with --agent-command; remove them"
            )
        return command_agent(agents.agent_command)
    factory: Callable[[str | None], Agent] = AGENTS.load(agents.agent or "")
    return factory(agents.agent_python)


def _load(settings: SweepSettings, longest: Longest) -> tuple[Workload, Tasks]:
    agents = settings.agents
    if agents.guided:
        if not settings.load.traces:
            raise InvalidInput("--guided: needs trajectories; give them with --traces")
        workload = load_workload(settings.load, longest, messages=True)
        if silent := next((p for p in workload.programs if not p.messages), None):
            raise InvalidInput(
                f"program {silent.id}: its trace has no messages to answer the agent with; "
                "give trajectories with --traces"
            )
        if forked := next((p for p in workload.programs if p.fork), None):
            raise InvalidInput(
                f"program {forked.id}: sub-agents cannot be guided; remove it from --traces"
            )
        return workload, read_tasks(agents.tasks) if agents.tasks else tasks_of(workload.programs)
    if agents.tasks is None:
        raise InvalidInput(
            f"{agents.flag}: needs tasks; give --tasks FILE, or --guided with --traces"
        )
    if settings.load.traces:
        raise InvalidInput("--traces: not supported for agents without --guided; remove it")
    tasks = read_tasks(agents.tasks)
    programs = tasks.programs()
    if settings.load.programs is not None:
        programs = tuple(choose_programs(programs, settings.load.programs))
    return Workload(tasks.name, programs, tasks.sha256, ()), tasks


def _settings(file: Path) -> str:
    try:
        return redact_settings(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput(f"--agent-config {file}: not UTF-8 text") from None


def _sandbox_record(sandbox: Bubblewrap | Containers) -> Numbers:
    kind = type(sandbox).__name__.lower()
    return {"kind": kind, "network": sandbox.network, **asdict(sandbox.limits)}


def _by_program(tasks: Tasks, programs: Sequence[Program]) -> dict[str, Task]:
    by_id = {task.id: task for task in tasks.tasks}
    by_program = {}
    for program in programs:
        task = by_id.get(program.id) or by_id.get(program.id.partition("#")[0])
        if task is None:
            raise InvalidInput(f"--tasks: no task for the recorded program {program.id}; add one")
        by_program[program.id] = task
    return by_program


def _sandbox(agents: Agents) -> Bubblewrap | Containers | None:
    sandbox: Bubblewrap | Containers
    limits = SandboxLimits(
        processes=agents.agent_processes,
        memory_bytes=int(agents.agent_memory_gb * GB),
        disk_bytes=int(agents.agent_disk_gb * GB),
    )
    if agents.sandbox is Sandbox.NONE:
        if not agents.i_know_this_runs_model_commands_on_my_machine:
            raise InvalidInput(
                f"--sandbox none: runs a model's commands on this machine; add {UNCONFINED}, or "
                "use --sandbox bubblewrap"
            )
        return None
    if agents.sandbox is Sandbox.CONTAINER:
        if agents.agent != "mini-swe-agent":
            raise InvalidInput(
                "--sandbox container: only mini-swe-agent runs its commands in containers"
            )
        executable = next(filter(shutil.which, CONTAINERS), CONTAINERS[0])
        sandbox = Containers(executable, Path(), limits, agents.agent_network)
    else:
        sandbox = Bubblewrap(limits, agents.agent_network)
    sandbox.check()
    return sandbox
