"""Runs a process, and ends it with its parent.

python keeper.py PARENT_PID PIPE_FD GRACE_S FOLDER COMMAND…

Whoever starts this (`servers.processes.supervised`) does so in a session of its own and holds the
other end of the
pipe. When that end closes, which the kernel does even where SIGKILL ends its holder, the server
(any process) gets SIGTERM, and after GRACE_S seconds everything that came of it SIGKILL. The same
where the server dies by itself: vLLM's engine processes outlive an API server that is killed. What
they kept in FOLDER, unless that is "", goes with them. Exits with the server's code, 128 + number
for a signal, 127 where it cannot be started. Linux; standard library.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PARENT_EVERY_MS = 1000
KILL_WITHIN_S = 10.0
TRACKER = b"multiprocessing.resource_tracker"
TRACKER_WITHIN_S = 2.0
"""Python's, which removes the shared memory of killed processes and then ends by itself."""


def main() -> int:
    folder, command = sys.argv[4], sys.argv[5:]
    try:
        return keep(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), command)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def keep(parent: int, pipe: int, grace_s: float, command: list[str]) -> int:
    libc = ctypes.CDLL(None)
    # Orphans of the server become our children, wherever they moved, so that none is lost.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signalled, signal_end = os.pipe()
    os.set_blocking(signal_end, False)
    signal.set_wakeup_fd(signal_end)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        server = subprocess.Popen(  # noqa: S603
            command,
            # Should we be killed, it ends by itself.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return 127
    _wait(server.pid, parent, pipe, signalled)
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(grace_s)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            with suppress(OSError):  # Who read it is gone.
                print(f"still there {grace_s:g} s after SIGTERM: killed", flush=True)
    _kill_the_rest()
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _wait(server: int, parent: int, pipe: int, signalled: int) -> None:
    """Until the server ends, the parent is gone, or a signal asks us to stop."""
    poll = select.poll()
    for fd in (os.pidfd_open(server), pipe, signalled):
        poll.register(fd, select.POLLIN)
    # A process that the parent forked may hold the pipe open after it, so we look at it too.
    while not poll.poll(PARENT_EVERY_MS) and os.getppid() == parent:
        pass


def _kill_the_rest() -> None:
    since_s = time.monotonic()
    while (waited_s := time.monotonic() - since_s) < KILL_WITHIN_S:
        for pid in descendants(os.getpid()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if waited_s > TRACKER_WITHIN_S or TRACKER not in command:
                    os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, FileNotFoundError):
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    left = [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


if __name__ == "__main__":
    sys.exit(main())
