"""Starts processes under a supervisor, which ends them and their descendants when this one ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from servers.basics.errors import EngineError
from servers.processes import supervisor

GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL, unless a process needs more."""


class Failing(Protocol):
    def failure(self) -> EngineError | None:
        """Return why it exited unexpectedly; None while it runs."""


def first_failure(processes: Iterable[Failing]) -> EngineError | None:
    """Return the failure of the first process that has one."""
    return next((failed for process in processes if (failed := process.failure())), None)


def supervised_command(
    command: Sequence[str], pipe: int, grace_s: float, folder: Path | None = None
) -> list[str]:
    """Return the command line that runs `command` under a supervisor.

    Start it in a new session, with `pipe`, the read end of a `liveness_pipe`, inherited. The
    supervisor removes `folder` when the process and all its descendants have ended.
    """
    python = [sys.executable, "-I", "-S", supervisor.__file__]
    return [*python, str(os.getpid()), str(pipe), str(grace_s), str(folder or ""), *command]


@contextmanager
def liveness_pipe() -> Iterator[tuple[int, int]]:
    """Open a pipe, and yield its read and its write end. Start the supervisor within the block.

    The supervisor ends its process when the write end is closed, which the kernel does even if this
    process is killed. The read end is closed after the block, the write end only if the block
    fails.
    """
    read_end, write_end = os.pipe()
    try:
        yield read_end, write_end
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)


class SupervisedProcess:
    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        folder: Path | None = None,
        grace_s: float | None = None,
    ) -> None:
        """Start the process. Its output goes to `log`, and `folder` is removed when it ends.

        After SIGTERM it has `grace_s` seconds to end, or GRACE_S.
        """
        self._grace_s = GRACE_S if grace_s is None else grace_s
        with liveness_pipe() as (read_end, self._write_end), log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603
                supervised_command(command, read_end, self._grace_s, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                pass_fds=[read_end],
                start_new_session=True,
            )
        self.log = log
        self._folder = folder
        self.pid = self._process.pid
        """Process id of the supervisor, which leads the process group."""
        self._stopped = False

    def exit_reason(self) -> str | None:
        """Return how the process ended without `stop`; None while it runs, and after `stop`."""
        code = self._process.poll()
        if code is None or self._stopped:
            return None
        if code < 0:
            return f"and its supervisor were ended by signal {-code}"
        if code <= 128:
            return f"exited with code {code}"
        hint = " (out of memory?)" if code - 128 == signal.SIGKILL else ""
        return f"was ended by signal {code - 128}{hint}"

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the process ends. Raises subprocess.TimeoutExpired."""
        self._process.wait(timeout_s)

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to all descendants, and wait until all have ended."""
        if self._stopped:
            return
        self._stopped = True
        os.close(self._write_end)
        try:
            self._process.wait(self._grace_s + supervisor.KILL_TIMEOUT_S + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:  # the supervisor was killed and could not clean up
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
