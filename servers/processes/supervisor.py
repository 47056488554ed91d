"""Runs a process, and ends it and its descendants when the parent ends.

python supervisor.py PARENT_PID PIPE_FD GRACE_S FOLDER COMMAND…

The parent (`servers.processes.supervised`) starts this in a new session and keeps the write end of
the pipe open. When that end closes, which the kernel does even if the parent gets SIGKILL, the
process gets SIGTERM, and after GRACE_S seconds all of its descendants get SIGKILL. They also get it
if the process ends by itself, because vLLM's engine processes outlive an API server that is killed.
Then FOLDER is removed, unless it is "". Exits with the code of the process, 128 + number for a
signal, or 127 if it cannot be started. Requires Linux. Imports only the standard library, since it
runs with -I -S to start fast and independently of installed packages.
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
CHECK_PARENT_EVERY_MS = 1000
KILL_TIMEOUT_S = 10.0
TRACKER = b"multiprocessing.resource_tracker"
TRACKER_GRACE_S = 8.0
"""Time for Python's resource tracker to remove the shared memory of killed processes and end. It
takes milliseconds, but beside another vLLM, whose processes poll, it may get no CPU for seconds."""


def main() -> int:
    folder, command = sys.argv[4], sys.argv[5:]
    try:
        return supervise(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), command)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def supervise(parent: int, pipe: int, grace_s: float, command: list[str]) -> int:
    libc = ctypes.CDLL(None)
    # Orphaned descendants of any session become children of this process.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signalled, signal_end = os.pipe()
    os.set_blocking(signal_end, False)
    signal.set_wakeup_fd(signal_end)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        process = subprocess.Popen(  # noqa: S603
            command,
            # The process gets SIGTERM if the supervisor is killed.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return 127
    _wait(process.pid, parent, pipe, signalled)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            with suppress(OSError):  # stdout may be a pipe whose reader has ended
                print(f"still running {grace_s:g} s after SIGTERM: killed", flush=True)
    _kill_descendants()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _wait(process: int, parent: int, pipe: int, signalled: int) -> None:
    """Wait until the process or the parent has ended, or a signal has arrived."""
    poll = select.poll()
    for fd in (os.pidfd_open(process), pipe, signalled):
        poll.register(fd, select.POLLIN)
    # A fork of the parent may keep the pipe open after the parent has ended.
    while not poll.poll(CHECK_PARENT_EVERY_MS) and os.getppid() == parent:
        pass


def _kill_descendants() -> None:
    started_s = time.monotonic()
    while (waited_s := time.monotonic() - started_s) < KILL_TIMEOUT_S:
        for pid in descendants(os.getpid()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if waited_s > TRACKER_GRACE_S or TRACKER not in command:
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
    pids: list[int] = []
    unvisited = [root]
    while unvisited:
        direct = children.get(unvisited.pop(), [])
        pids += direct
        unvisited += direct
    return pids


if __name__ == "__main__":
    sys.exit(main())
