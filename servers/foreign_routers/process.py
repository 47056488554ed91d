"""Starts a router of another project on a free port of 127.0.0.1.

In: the router, its installation, and the servers behind it. Out: a `RouterProcess`, and its log.
"""

from __future__ import annotations

import os
from pathlib import Path

from servers.foreign_routers.installation import Deployment
from servers.foreign_routers.projects import SGLANG_ROUTER, THUNDERAGENT_ORG
from servers.foreign_routers.vllm_router import VLLM_ROUTER
from servers.processes.environments import Installation
from servers.processes.server import ServerProcess, launch, read_end
from servers.routing import ForeignRouter

PROJECTS = {
    "vllm-router": VLLM_ROUTER,
    "sglang-router": SGLANG_ROUTER,
    "thunderagent-org": THUNDERAGENT_ORG,
}
READY_WITHIN_S = 60.0


class RouterProcess(ServerProcess):
    def __init__(
        self,
        router: ForeignRouter,
        installation: Installation,
        deployment: Deployment,
        log: Path,
    ) -> None:
        super().__init__(router.name, log)
        self.metrics_port = self.reserve_port()
        self.router, self._deployment = router, deployment
        self._python, self._project = installation.python, PROJECTS[router.project]

    def start(self) -> None:
        command = self._project.command(
            self._python, self.router.policy, self._deployment, self.port, self.metrics_port
        )
        self.supervise(command, self._project.environment(os.environ))

    def is_healthy(self) -> bool:
        return self._project.is_ready(self.port, self._deployment)

    def cause(self, log: Path) -> str:
        return self._project.failure_cause(read_end(log))


def launch_router(
    router: ForeignRouter,
    installation: Installation,
    deployment: Deployment,
    log: Path,
    *,
    ready_within_s: float = READY_WITHIN_S,
) -> RouterProcess:
    """Start a router in front of running servers, and wait until it is healthy. Raises
    ServerFailed."""
    return launch(
        lambda: RouterProcess(router, installation, deployment, log), within_s=ready_within_s
    )
