"""A process, and all that comes of it, that ends with us however we end (`keeper`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from servers import keeper

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""


def keeping(command: Sequence[str], alive: int, grace_s: float) -> list[str]:
    """To be started in a session of its own, with `alive` passed on: one end of a pipe whose other
    end is ours, so that it closes however we end."""
    keep = [sys.executable, "-I", "-S", keeper.__file__]
    return [*keep, str(os.getpid()), str(alive), str(grace_s), *command]


class Kept:
    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        theirs, self._alive = os.pipe()
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(  # noqa: S603
                    keeping(command, theirs, GRACE_S),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=env,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(theirs)
        self.log = log
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
        return f"was ended by signal {code - 128}" if code > 128 else f"exited with code {code}"

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
            self._process.wait(GRACE_S + keeper.KILL_WITHIN_S + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
