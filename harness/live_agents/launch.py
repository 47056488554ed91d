"""How the process of a program is started: its folder, what it is told, its sandbox.

In: a job's `AgentPlan`, and where its gateway listens. Out: per program a `Launch`, and the command
line and environment of its process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from agents.agent import Launch
from agents.sandbox.bubblewrap import Bubblewrap
from agents.sandbox.container import Containers
from agents.workspace import make_workspace
from harness.cells.names import slug
from harness.load.agent_plan import AgentPlan
from harness.redact import is_secret_name
from reports.run_folder.atomic import make_folder
from traces import Program

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAME_CHARS = 60
WORKSPACE = "workspace"


def readable(plan: AgentPlan) -> tuple[Path, ...]:
    """Asks the agent's Python, which takes too long for a loop that streams pass through."""
    if not isinstance(plan.sandbox, Bubblewrap):
        return ()
    config = [plan.config.absolute()] if plan.config else []
    return (*plan.agent.readable(), *plan.reads, *config)


@dataclass(frozen=True, slots=True)
class Launches:
    plan: AgentPlan
    folder: Path
    """A folder for each program in it; absolute."""
    model: str
    base_url: str
    containers: Containers | None
    readable: tuple[Path, ...]
    """What a sandbox shows of the agent and for it (`readable`); the same for every program."""

    def folder_of(self, place: int, program: Program) -> Path:
        return self.folder / f"{place:05d}-{slug(program.id)[:NAME_CHARS]}"

    def prepare(self, place: int, program: Program) -> Launch:
        """Its folder and workspace are there, and `launch.json` in it."""
        plan, task = self.plan, self.plan.tasks[program.id]
        folder = self.folder_of(place, program)
        workspace = folder / WORKSPACE
        make_folder(folder)
        make_workspace(workspace, task.workspace)
        boxed = plan.sandbox if isinstance(plan.sandbox, Bubblewrap) else None
        reached = boxed.gateway_url(self.base_url) if boxed else self.base_url
        launch = Launch(
            program_id=program.id,
            task=task.text,
            base_url=f"{reached}/programs/{quote(program.id, safe='')}/v1",
            model=self.model,
            workspace=str(workspace),
            folder=str(folder),
            max_turns=len(program.turns) if plan.guided else None,
            environment=self._environment(task.image, workspace, folder.name),
            socket=f"{folder}.sock" if boxed and not boxed.network else None,
            config=None if plan.config is None else str(plan.config.absolute()),
        )
        launch.write()
        return launch

    def _environment(self, image: str | None, workspace: Path, name: str) -> Mapping[str, object]:
        containers = self.containers
        if containers is None:
            return {"environment_class": "local", "cwd": str(workspace)}
        where = {"executable": containers.executable, "run_args": containers.run_args(name)}
        return {"environment_class": "docker", **({"image": image} if image else {}), **where}

    def process(self, launch: Launch, key: str) -> tuple[list[str], dict[str, str]]:
        """Its command line and environment. `key`: what the gateway knows it by."""
        plan, agent = self.plan, self.plan.agent
        command = agent.command(launch.file)
        env = {
            "OPENAI_BASE_URL": launch.base_url,
            "OPENAI_API_BASE": launch.base_url,
            "OPENAI_API_KEY": key,
            **agent.env(),
        }
        if not isinstance(plan.sandbox, Bubblewrap):
            ours = {name: value for name, value in os.environ.items() if not is_secret_name(name)}
            return command, {**ours, **env}
        return plan.sandbox.wrap(
            command,
            env={"PATH": PATH, "HOME": launch.folder, **env},
            workspace=Path(launch.workspace),
            writable=[Path(launch.folder)],
            readable=self.readable,
            socket=None if launch.socket is None else Path(launch.socket),
        )
