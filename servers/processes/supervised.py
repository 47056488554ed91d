"""A process, and all that comes of it, that ends with us however we end (`keeper`)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from servers.processes import supervisor

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""


def keeping(
    command: Sequence[str], alive: int, grace_s: float, folder: Path | None = None
) -> list[str]:
    """To be started in a session of its own, with `alive` passed on: their end of an
    `alive_while_open`. `folder` is removed when all of it has ended."""
    keep = [sys.executable, "-I", "-S", supervisor.__file__]
    return [*keep, str(os.getpid()), str(alive), str(grace_s), str(folder or ""), *command]


@contextmanager
def alive_while_open() -> Iterator[tuple[int, int]]:
    """Their end and ours of a pipe, while a keeper is started. Ours stays open, unless that fails:
    to close it, which the kernel does however we end, tells the keeper to end."""
    theirs, ours = os.pipe()
    try:
        yield theirs, ours
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


class SupervisedProcess:
    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        folder: Path | None = None,
    ) -> None:
        """`folder` is removed when it has ended."""
        with alive_while_open() as (theirs, self._alive), log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603
                keeping(command, theirs, GRACE_S, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                pass_fds=[theirs],
                start_new_session=True,
            )
        self.log = log
        self._folder = folder
        self.pid = self._process.pid
        """Of the process group, led by the keeper."""
        self._stopped = False

    def ended(self) -> str | None:
        """How it ended by itself; None while it runs, and after `stop`."""
        code = self._process.poll()
        if code is None or self._stopped:
            return None
        if code < 0:
            return f"and its keeper were ended by signal {-code}"
        if code <= 128:
            return f"exited with code {code}"
        hint = " (out of memory?)" if code - 128 == signal.SIGKILL else ""
        return f"was ended by signal {code - 128}{hint}"

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it ends by itself; subprocess.TimeoutExpired if it does not."""
        self._process.wait(timeout_s)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to all that is left. Returns when nothing is."""
        if self._stopped:
            return
        self._stopped = True
        os.close(self._alive)
        try:
            self._process.wait(GRACE_S + supervisor.KILL_WITHIN_S + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if self._folder is not None:  # which the keeper was to remove
                shutil.rmtree(self._folder, ignore_errors=True)
