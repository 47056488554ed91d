"""Containers in which mini-swe-agent's environment `docker` runs a model's commands.

It starts them itself (`podman run -d …run_args… IMAGE sleep`, then `podman exec` per command). We
say with which walls and limits, and see to it that none is left when a run ends, however it ends:
each bears the run's label. `python -m agents.container podman RUN` waits for SIGTERM and then
removes them.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agents.sandbox import Limits
from servers.kept import Kept

LABEL = "turnstile.run"
ANSWERS_WITHIN_S = 60
REMOVED_WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class Containers:
    executable: str
    """podman or docker."""
    folder: Path
    """The run's: a later run in it finds what an earlier one left."""
    limits: Limits = field(default_factory=Limits)
    """Memory of all of a container's processes together, without swap; files have none."""
    network: bool = False

    @property
    def run(self) -> str:
        return hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]

    def check(self) -> None:
        """ValueError where there is none, or it does not answer."""
        try:
            _ask(self.executable, "ps", "--quiet")
        except FileNotFoundError:
            raise ValueError(
                f"containers: {self.executable} is not installed; get it with: "
                "apt-get install podman, or run agents in the sandbox bubblewrap"
            ) from None
        except subprocess.SubprocessError as error:
            said = (getattr(error, "stderr", None) or str(error)).splitlines()[-1]
            raise ValueError(f"containers: {self.executable} does not answer: {said}") from None

    def run_args(self) -> list[str]:
        """For mini-swe-agent's `environment.run_args`."""
        memory = str(self.limits.memory_bytes)
        limits = ["--pids-limit", str(self.limits.processes)]
        limits += ["--memory", memory, "--memory-swap", memory]
        # An init, since else what is orphaned stays as a zombie and counts; 0 s, since sleep, which
        # is all that runs in it, is nothing to wait for.
        ends = ["--rm", "--init", "--stop-timeout", "0", "--label", f"{LABEL}={self.run}"]
        network = [] if self.network else ["--network", "none"]
        return [*ends, *limits, *network, "--security-opt", "no-new-privileges"]

    def remove(self) -> None:
        """All of the run's. Its agents should be gone, which would start more."""
        remove(self.executable, self.run)

    @contextmanager
    def ending_with_us(self, log: Path) -> Iterator[None]:
        """Without what an earlier run left; after it, or after our death, without what it left."""
        self.remove()
        remover = [sys.executable, "-P", "-m", "agents.container", self.executable, self.run]
        kept = Kept(remover, os.environ, log)
        try:
            yield
        finally:
            kept.stop()
            self.remove()


def remove(executable: str, run: str) -> None:
    deadline_s = time.monotonic() + REMOVED_WITHIN_S
    while ids := _ask(
        executable, "ps", "--all", "--quiet", "--filter", f"label={LABEL}={run}"
    ).split():
        if time.monotonic() > deadline_s:
            raise ValueError(f"containers: still there, remove them: {executable} rm -f {ids[0]} …")
        # Whether it succeeded is seen by what is left: --rm may have been faster.
        subprocess.run([executable, "rm", "--force", *ids], capture_output=True)  # noqa: S603


def _ask(*command: str) -> str:
    return subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, timeout=ANSWERS_WITHIN_S
    ).stdout


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.sigwait([signal.SIGTERM])
    remove(*sys.argv[1:])
