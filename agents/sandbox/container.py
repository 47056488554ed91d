"""Containers in which mini-swe-agent's environment `docker` runs a model's commands.

It starts them itself (`podman run -d …run_args… IMAGE sleep`, then `podman exec` per command). We
say with which walls and limits, and see to it that none is left when a run ends, however it ends:
each bears the run's label. `python -m agents.sandbox.container podman LABEL` waits for SIGTERM and
then
removes those that bear it.
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

from agents.sandbox.bubblewrap import Limits
from agents.sandbox.files import Files, Kind
from servers.errors import InvalidInput
from servers.processes.supervised import SupervisedProcess

LABEL = "turnstile.run"
PROGRAM = "turnstile.program"
DROPPED = ("MKNOD", "NET_RAW", "AUDIT_WRITE")
"""Rights that Docker gives to root, and podman does not."""
STORAGE = ("Store.GraphRoot", "DockerRootDir")
"""As podman and as Docker call it; what is named docker may be podman."""
ANSWERS_WITHIN_S = 60
REMOVED_WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class Containers:
    executable: str
    """podman or docker."""
    folder: Path
    """The run's: a later run in it finds what an earlier one left."""
    limits: Limits = field(default_factory=Limits)
    """Memory of all of a container's processes together, without swap."""
    network: bool = False

    @property
    def run(self) -> str:
        return hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]

    def check(self) -> None:
        """ValueError where there is none, or it does not answer."""
        try:
            _ask(self.executable, "ps", "--quiet")
        except FileNotFoundError:
            raise InvalidInput(
                f"containers: {self.executable} is not installed; get it with: "
                "apt-get install podman, or run agents in the sandbox bubblewrap"
            ) from None
        except subprocess.SubprocessError as error:
            said = (getattr(error, "stderr", None) or str(error)).splitlines()[-1]
            raise InvalidInput(f"containers: {self.executable} does not answer: {said}") from None

    def run_args(self, program: str) -> list[str]:
        """For mini-swe-agent's `environment.run_args`. `program`: its name in the run."""
        memory = str(self.limits.memory_bytes)
        limits = ["--pids-limit", str(self.limits.processes)]
        limits += ["--memory", memory, "--memory-swap", memory]
        # An init, since else what is orphaned stays as a zombie and counts; 0 s, since sleep, which
        # is all that runs in it, is nothing to wait for.
        ends = ["--rm", "--init", "--stop-timeout", "0"]
        ends += [word for label in self._labels(program) for word in ("--label", label)]
        network = [] if self.network else ["--network", "none"]
        # Images are built for root, so what that needs to be a system's root is left.
        rights = ["--security-opt", "no-new-privileges"]
        rights += [word for name in DROPPED for word in ("--cap-drop", name)]
        return [*ends, *limits, *network, *rights]

    def _labels(self, program: str) -> tuple[str, str]:
        return f"{LABEL}={self.run}", f"{PROGRAM}={program}"

    def remove(self) -> None:
        """All of the run's. Its agents should be gone, which would start more."""
        remove(self.executable, f"{LABEL}={self.run}")

    def end(self, program: str) -> None:
        """What an agent that was ended left running. What is not removed now is at the run's end,
        so it is no matter where the engine does not answer."""
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            remove(self.executable, *self._labels(program))

    def files(self, program: str) -> Files | None:
        """What it writes besides its image; None where its container is another machine's."""
        for kind in STORAGE:
            with suppress(OSError, subprocess.SubprocessError):
                storage = _ask(self.executable, "info", "--format", f"{{{{.{kind}}}}}").strip()
                held = partial(self._held, program)
                return Files(Path(storage), self.limits.disk_bytes, held)
        return None

    def _held(self, program: str, kind: Kind) -> int | None:
        if kind is not Kind.BYTES:
            return 0
        try:
            ids = _ask(self.executable, *_listed(self._labels(program))).split()
            sizes = ("inspect", "--size", "--format", "{{.SizeRw}}")
            return sum(map(int, _ask(self.executable, *sizes, *ids).split())) if ids else 0
        except (OSError, subprocess.SubprocessError, ValueError):
            return None

    @contextmanager
    def ending_with_us(self, log: Path) -> Iterator[None]:
        """Without what an earlier run left; after it, or after our death, without what it left."""
        self.remove()
        label = f"{LABEL}={self.run}"
        remover = [sys.executable, "-P", "-m", "agents.sandbox.container", self.executable, label]
        kept = SupervisedProcess(remover, os.environ, log)
        try:
            yield
        finally:
            kept.stop()
            self.remove()


def remove(executable: str, *labels: str) -> None:
    deadline_s = time.monotonic() + REMOVED_WITHIN_S
    while ids := _ask(executable, *_listed(labels)).split():
        if time.monotonic() > deadline_s:
            raise InvalidInput(
                f"containers: still there, remove them: {executable} rm -f {ids[0]} …"
            )
        # Whether it succeeded is seen by what is left: --rm may have been faster.
        subprocess.run(  # noqa: S603
            [executable, "rm", "--force", *ids], capture_output=True, timeout=REMOVED_WITHIN_S
        )


def _listed(labels: Sequence[str]) -> list[str]:
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    return ["ps", "--all", "--quiet", *filters]


def _ask(*command: str) -> str:
    return subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, timeout=ANSWERS_WITHIN_S
    ).stdout


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.sigwait([signal.SIGTERM])
    remove(*sys.argv[1:])
