"""Fixtures that fail a test if it leaves a process, port, container, file, mount or thread behind.

Each pytest session (under xdist, each worker) sets a token in its environment. Every process that
it starts inherits the token, so that orphans are found too. Temporary files go to a folder of the
session. Resources that exist when a test begins, because a fixture of a wider scope holds them,
may stay until that fixture ends, and so may the children of such processes: browsers start some
late. Ports, containers and GPU memory are not checked separately, because processes, mounts and
segments of shared memory hold them.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

MARK = "TURNSTILE_TESTS"
"""Environment variable: the tokens of the sessions that a process belongs to, outermost first."""
GRACE_S = 5.0
"""How long a process that a test has ended may take to disappear on a busy machine."""
SHARED_MEMORY_GRACE_S = 30.0
"""How long segments may stay. Nothing shows which session created one, and those of a server that
another xdist worker has killed stay until the server's supervisor has ended all its processes."""
EXEC_GRACE_S = 2.0
"""Age at which the environment of a process is final; younger ones may not have called exec."""
SEMAPHORE = "sem.mp-"
"""Prefix of multiprocessing's semaphores. Its resource tracker removes them later, even after a
SIGKILL, and nothing shows which session created one."""
PODMANS = {"libpod_lock", "libpod_rootless_lock"}
"""Segments that the first podman on a machine creates for all later podmans."""
TRACKER = b"multiprocessing.resource_tracker"
"""Command line of the process that multiprocessing starts once per session when it needs it."""


class Watch:
    """Lists the resources that the session holds: for each kind, the name to report by key."""

    def __init__(self, token: str, temporary: Path, basetemp: Path) -> None:
        self._token = token.encode()
        self._temporary = temporary
        self._below = (f"{temporary}/", f"{basetemp}/")
        self._others: dict[int, float] = {}
        """Processes of other sessions, and the time when each was first seen."""

    def look(self) -> dict[str, dict[str, str]]:
        return {
            "process": {str(pid): command(pid) for pid in self.pids()},
            "thread": {str(t.ident): t.name for t in threading.enumerate()},
            "temporary file": {name: name for name in os.listdir(self._temporary)},
            "mount": {at: at for at in mounts() if at.startswith(self._below)},
            "shared memory": {name: name for name in segments()},
            "open file": open_files(),
        }

    def pids(self) -> set[int]:
        now_s = time.monotonic()
        running = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
        self._others = {pid: at_s for pid, at_s in self._others.items() if pid in running}
        others = {pid for pid, at_s in self._others.items() if now_s - at_s > EXEC_GRACE_S}
        children = descendants(os.getpid())
        found = set()
        for pid in running - (others - children):
            if pid in children or self._token in read(f"/proc/{pid}/environ"):
                if TRACKER not in read(f"/proc/{pid}/cmdline") and not has_ended(pid):
                    found.add(pid)
            else:
                self._others.setdefault(pid, now_s)
        return found

    def left(self, before: dict[str, dict[str, str]]) -> list[str]:
        now = self.look()
        new = [
            (kind, name)
            for kind, resources in now.items()
            for key, name in resources.items()
            if key not in before[kind]
            and not (kind == "process" and str(parent(int(key))) in before[kind])
        ]
        if len(now["open file"]) <= len(before["open file"]):
            new = [(kind, name) for kind, name in new if kind != "open file"]
        return [f"{kind}: {name}" for kind, name in new if kind != "shared memory" or unused(name)]


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def has_ended(pid: int) -> bool:
    """Whether a process is a zombie or gone. Its command line is also empty while it calls exec."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] in ([b"Z"], [])


def parent(pid: int) -> int:
    """Return 0 for a process that is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def command(pid: int) -> str:
    return f"{pid} " + read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    tasks = f"/proc/{pid}/task"
    try:
        threads = os.listdir(tasks)
    except (FileNotFoundError, ProcessLookupError):
        return found  # It has ended.
    for thread in threads:
        for child in read(f"{tasks}/{thread}/children").split():
            found |= {int(child)} | descendants(int(child))
    return found


def mounts() -> list[str]:
    return [line.split()[1] for line in read("/proc/self/mounts").decode().splitlines()]


def segments() -> list[str]:
    try:
        with os.scandir("/dev/shm") as found:  # noqa: S108
            own = [f.name for f in found if f.is_file() and f.stat().st_uid == os.getuid()]
        return [name for name in own if not name.startswith(SEMAPHORE) and name not in PODMANS]
    except OSError:
        return []


def unused(segment: str) -> bool:
    """Whether no process maps the segment; other sessions create segments too."""
    path = f"/dev/shm/{segment}".encode()  # noqa: S108
    return not any(path in read(f"{process}/maps") for process in Path("/proc").glob("[0-9]*"))


def open_files() -> dict[str, str]:
    """Return this process's open files, without the pipe to multiprocessing's resource tracker."""
    found = {}
    trackers = str(getattr(resource_tracker._resource_tracker, "_fd", None))
    for number in set(os.listdir("/proc/self/fd")) - {trackers}:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        found[f"{number} {target}"] = f"{number} {target}{port(target)}"
    return found


def port(target: str) -> str:
    """Return the port of a listening TCP socket; an empty string for anything else."""
    if not target.startswith("socket:["):
        return ""
    for line in read("/proc/self/net/tcp").decode().splitlines()[1:]:
        columns = line.split()
        if columns[3] == "0A" and columns[9] == target[8:-1]:
            return f" (port {int(columns[1].split(':')[1], 16)})"
    return ""


def left_after_grace(left: Callable[[], list[str]]) -> list[str]:
    """Return what is still left after `GRACE_S`, or after `SHARED_MEMORY_GRACE_S` if only segments
    are left."""
    if not left():
        return []
    gc.collect()
    begin_s = time.monotonic()
    while found := left():
        only_segments = all(line.startswith("shared memory: ") for line in found)
        grace_s = SHARED_MEMORY_GRACE_S if only_segments else GRACE_S
        if time.monotonic() - begin_s >= grace_s:
            break
        time.sleep(0.02)
    return found


def remove(found: list[str]) -> None:
    """Remove what a test left behind, so that it does not disturb other tests."""
    for line in found:
        kind, _, name = line.partition(": ")
        if kind == "process":
            with suppress(ProcessLookupError):
                os.kill(int(name.split()[0]), signal.SIGKILL)
        elif kind == "mount":
            subprocess.run(["umount", "-l", name], check=False)
        elif kind == "shared memory":
            Path("/dev/shm", name).unlink(missing_ok=True)  # noqa: S108


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    basetemp = tmp_path_factory.getbasetemp()  # not below the folder that is created here
    before = {name: os.environ.get(name) for name in (MARK, "TMPDIR")}
    token = f"{os.getpid()}.{time.time_ns()}"
    with tempfile.TemporaryDirectory(prefix="ts-") as temporary:
        os.chmod(temporary, 0o1777)  # noqa: S103 (like /tmp: tests also run commands as other users)
        os.environ[MARK] = f"{before[MARK] or ''} {token}"
        os.environ["TMPDIR"] = temporary
        tempfile.tempdir = None
        # Started later, its pipe would count as a leak of the first test that needs it.
        resource_tracker.ensure_running()
        yield Watch(token, Path(temporary), basetemp)
        tempfile.tempdir = None
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session", autouse=True)
def nothing_left_by_the_session(watch: Watch) -> Iterator[None]:
    before = watch.look()
    yield
    fail_if_left(watch, before)


@pytest.fixture(autouse=True)
def nothing_left(watch: Watch) -> Iterator[None]:
    before = watch.look()
    yield
    fail_if_left(watch, before)


def fail_if_left(watch: Watch, before: dict[str, dict[str, str]]) -> None:
    if found := left_after_grace(lambda: watch.left(before)):
        remove(found)
        pytest.fail("left behind:\n  " + "\n  ".join(found), pytrace=False)
