"""Confines and removes the containers in which mini-swe-agent runs a model's commands.

mini-swe-agent's environment `docker` starts them (`podman run -d …run_args… IMAGE sleep`, then
`podman exec` for each command). This module provides the options that confine and limit them, and
removes them when a run ends or is killed. Each container has the run's label, and a process `python
-m agents.sandbox.container podman LABEL` removes all containers with that label at SIGTERM.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agents.sandbox.bubblewrap import SandboxLimits
from agents.sandbox.files import DiskUsage, LimitedQuantity
from servers.basics.errors import InvalidInput
from servers.processes.supervised import SupervisedProcess

LABEL = "turnstile.run"
PROGRAM = "turnstile.program"
DROPPED = ("MKNOD", "NET_RAW", "AUDIT_WRITE")
"""Capabilities that Docker gives to root, but podman does not."""
STORAGE = ("Store.GraphRoot", "DockerRootDir")
"""The name of the field in podman and in Docker. A program called `docker` may be podman."""
COMMAND_TIMEOUT_S = 60
REMOVE_TIMEOUT_S = 120
READY_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Containers:
    executable: str
    """The podman or docker program."""
    folder: Path
    """The run's folder. A later run in the same folder removes the containers of earlier ones."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    """`memory_bytes` is the limit of all processes of a container together, without swap."""
    network: bool = False

    @property
    def run(self) -> str:
        return hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]

    def check(self) -> None:
        """Raises InvalidInput if the program is missing or does not answer."""
        try:
            _output_of(self.executable, "ps", "--quiet")
        except FileNotFoundError:
            raise InvalidInput(
                f"containers: {self.executable} is not installed; get it with: "
                "apt-get install podman, or run agents in the sandbox bubblewrap"
            ) from None
        except subprocess.SubprocessError as error:
            reason = (getattr(error, "stderr", None) or str(error)).splitlines()[-1]
            raise InvalidInput(f"containers: {self.executable} does not answer: {reason}") from None

    def run_args(self, program: str) -> list[str]:
        """Options for mini-swe-agent's `environment.run_args`; `program` is unique in the run."""
        memory = str(self.limits.memory_bytes)
        limits = ["--pids-limit", str(self.limits.processes)]
        limits += ["--memory", memory, "--memory-swap", memory]
        # Without an init process, orphans would remain as zombies and count as processes. The main
        # process is a sleep, which can be killed immediately.
        ends = ["--rm", "--init", "--stop-timeout", "0"]
        ends += [word for label in self._labels(program) for word in ("--label", label)]
        network = [] if self.network else ["--network", "none"]
        # Images expect root, so its other capabilities are kept.
        rights = ["--security-opt", "no-new-privileges"]
        rights += [word for name in DROPPED for word in ("--cap-drop", name)]
        return [*ends, *limits, *network, *rights]

    def _labels(self, program: str) -> tuple[str, str]:
        return f"{LABEL}={self.run}", f"{PROGRAM}={program}"

    def remove(self) -> None:
        """Remove all containers of the run. Call it after its agents have ended."""
        remove(self.executable, f"{LABEL}={self.run}")

    def remove_program(self, program: str) -> None:
        """Remove the containers of one program. Failures are ignored: `remove` comes later."""
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            remove(self.executable, *self._labels(program))

    def disk_usage(self, program: str) -> DiskUsage | None:
        """Return the usage of a program's containers, or None if these are on another machine."""
        for kind in STORAGE:
            with suppress(OSError, subprocess.SubprocessError):
                folder = _output_of(self.executable, "info", "--format", f"{{{{.{kind}}}}}")
                count = partial(self._count, program)
                return DiskUsage(Path(folder.strip()), self.limits.disk_bytes, count)
        return None

    def _count(self, program: str, kind: LimitedQuantity) -> int | None:
        if kind is not LimitedQuantity.BYTES:
            return 0
        try:
            ids = _output_of(self.executable, *_list_command(self._labels(program))).split()
            sizes = ("inspect", "--size", "--format", "{{.SizeRw}}")
            return sum(map(int, _output_of(self.executable, *sizes, *ids).split())) if ids else 0
        except (OSError, subprocess.SubprocessError, ValueError):
            return None

    @contextmanager
    def cleaned_up(self, log: Path) -> Iterator[None]:
        """Remove the containers of earlier runs before the block, and all containers after it.

        If we are killed, a supervised process removes them.
        """
        self.remove()
        label = f"{LABEL}={self.run}"
        remover = [sys.executable, "-P", "-m", "agents.sandbox.container", self.executable, label]
        # The supervisor's usual grace is too short for a busy container runtime: if `podman rm` is
        # killed, the container stays.
        process = SupervisedProcess(remover, os.environ, log, grace_s=2 * REMOVE_TIMEOUT_S)
        try:
            _wait_until_ready(process)
            yield
        finally:
            process.stop()
            self.remove()


def _wait_until_ready(process: SupervisedProcess) -> None:
    """Wait until SIGTERM no longer ends the remover before it has removed anything."""
    while not process.log.read_bytes():
        if reason := process.exit_reason():
            raise InvalidInput(f"containers: the process that removes them {reason}: {process.log}")
        time.sleep(READY_POLL_S)


def remove(executable: str, *labels: str) -> None:
    """Remove the containers with all of the labels. Raises InvalidInput if some remain."""
    reason = ""
    deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
    while ids := _output_of(executable, *_list_command(labels)).split():
        if time.monotonic() > deadline_s:
            raise InvalidInput(
                f"containers: could not be removed{reason}; remove them: "
                f"{executable} rm -f {ids[0]} …"
            )
        # Failures may be harmless: --rm may have removed a container in the meantime.
        removal = subprocess.run(  # noqa: S603
            [executable, "rm", "--force", *ids],
            capture_output=True,
            text=True,
            timeout=REMOVE_TIMEOUT_S,
        )
        reason = f" ({removal.stderr.strip().splitlines()[-1]})" if removal.stderr.strip() else ""


def _list_command(labels: Sequence[str]) -> list[str]:
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    return ["ps", "--all", "--quiet", *filters]


def _output_of(*command: str) -> str:
    return subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, timeout=COMMAND_TIMEOUT_S
    ).stdout


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM])
    remove(*sys.argv[1:])
