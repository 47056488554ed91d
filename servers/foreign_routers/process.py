"""Starts a router of another project on a free port of 127.0.0.1, waits until it is healthy, and
stops it.

In: the router, its installation, and the servers behind it. Out: a `RouterProcess`, and its log.
The router ends when its parent does, even if that is killed (`servers.processes`).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Self

from servers.basics.errors import RouterFailed
from servers.foreign_routers import sglang_router, thunderagent_org, vllm_router
from servers.foreign_routers.deployment import Deployment
from servers.foreign_routers.installation import RouterInstallation
from servers.processes.port import Port
from servers.processes.supervised import SupervisedProcess
from servers.routing import ForeignRouter

PROJECTS = {
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "thunderagent-org": thunderagent_org,
}
"""The module of each project: its command line, its environment, when it is ready, and which line
of its log has the cause of a failure."""
READY_WITHIN_S = 60.0
POLL_S = 0.05
MAX_STARTS = 3
"""Maximum number of attempts if another process takes a free port that was chosen."""
END_BYTES = 65_536
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TAKEN = "ddress already in use"


class RouterProcess:
    """A running router, and a context manager that stops it: `with launch_router(…) as router:`."""

    def __init__(
        self,
        router: ForeignRouter,
        installation: RouterInstallation,
        deployment: Deployment,
        log: Path,
    ) -> None:
        self.router, self.log = router, log
        self._deployment, self._project = deployment, PROJECTS[router.project]
        self._ports = Port(), Port()
        port, self.metrics_port = (each.number for each in self._ports)
        command = self._project.command(
            installation.python, router.policy, deployment, port, self.metrics_port
        )
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            env = self._project.environment(os.environ)
            self._process = SupervisedProcess(command, env, log)
        except BaseException:
            self._close_ports()
            raise
        self.base_url = f"http://127.0.0.1:{port}"
        self.pid = self._process.pid
        """Process id of the supervisor, which leads the process group."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def failure(self) -> RouterFailed | None:
        """Return why the router exited unexpectedly; None while it runs and after `stop`."""
        what = self._process.exit_reason()
        return None if what is None else self._failed(what)

    def wait_until_healthy(self, within_s: float) -> None:
        """Raises RouterFailed."""
        deadline_s = time.monotonic() + within_s
        while True:
            if (failure := self.failure()) is not None:
                raise failure
            if self._project.is_ready(self._ports[0].number, self._deployment):
                return
            if time.monotonic() > deadline_s:
                raise self._failed(f"was not healthy after {within_s:g} s")
            time.sleep(POLL_S)

    def port_was_taken(self) -> bool:
        """Return whether the router failed because another process uses one of its ports."""
        return any(TAKEN in line for line in last_lines(self.log))

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to all descendants, and wait until all have ended."""
        self._process.stop()
        self._close_ports()

    def _failed(self, what: str) -> RouterFailed:
        cause = self._project.failure_cause(last_lines(self.log))
        return RouterFailed(f"{self.router.name} {what}: {cause} (log: {self.log})")

    def _close_ports(self) -> None:
        for port in self._ports:
            port.close()


def launch_router(
    router: ForeignRouter,
    installation: RouterInstallation,
    deployment: Deployment,
    log: Path,
    *,
    ready_within_s: float = READY_WITHIN_S,
) -> RouterProcess:
    """Start a router in front of running servers, and wait until it is healthy. Raises
    RouterFailed."""
    starts = MAX_STARTS
    while True:
        starts -= 1
        process = RouterProcess(router, installation, deployment, log)
        try:
            process.wait_until_healthy(ready_within_s)
        except RouterFailed:
            process.stop()
            if not starts or not process.port_was_taken():
                raise
        except BaseException:
            process.stop()
            raise
        else:
            return process


def last_lines(log: Path) -> list[str]:
    """Return the non-empty lines at the end of the log, without colours."""
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        text = COLOURS.sub("", file.read().decode(errors="replace"))
        return [line.rstrip() for line in text.split("\n") if line.strip()]
    return []
