"""Faults at the file layer: the n-th operation on files below a folder fails.

Operations that reach the disk count: open for writing, mkdir, write, fsync, rename. They are
counted over a process and all its forks, and logged one per line.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAULTS = {
    "full": "no space is left from this operation on; the first half of a write still fits",
    "eio": "this operation fails with an input/output error",
    "killed": "the process is killed before the operation",
    "half": "the process is killed within the operation: the first half of a write is on disk",
    "lost": "a rename reports success without effect; the process is killed at its next operation",
    "alone": "the worker is killed before the operation, and its parent continues",
    "power": "a power cut after the operation: everything that was not synced is lost (`power.py`)",
}
STOPPED = "stopped"
"""Not a fault: the worker stops before the operation (SIGSTOP) until it gets SIGCONT."""


@dataclass(frozen=True, slots=True)
class Operation:
    kind: str
    path: str
    to: str = ""
    """The new path of a rename."""
    inode: int = 0
    size_bytes: int = 0
    """At an fsync: how much of the file is now durable."""


@dataclass(frozen=True, slots=True)
class Fault:
    folder: str
    log: str
    at: int | None = None
    """Number of the operation that fails, from 0; None: no operation fails."""
    kind: str = "eio"

    def install(self) -> None:
        _Layer(self).install()


def operations(log: Path) -> list[Operation]:
    return [Operation(**json.loads(line)) for line in log.read_text().splitlines()]


class _Layer:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._folder = os.path.realpath(fault.folder)
        self._count = mmap.mmap(-1, 8)
        """Shared with all forks."""
        self._write = os.write
        self._log = os.open(fault.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

    def install(self) -> None:
        os.mkdir = self._of_path("mkdir", os.mkdir)
        os.replace = self._rename(os.replace)
        os.rename = self._rename(os.rename)
        os.open = self._open(os.open)
        os.fsync = self._of_handle("fsync", os.fsync)
        os.write = self._of_handle("write", os.write)

    def _of_path(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
            return self._do(Operation(kind, self._name(path)), lambda: real(path, *args, **kwargs))

        return wrapped

    def _rename(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, to: Any) -> Any:
            return self._do(
                Operation("rename", self._name(path), self._name(to)), lambda: real(path, to)
            )

        return wrapped

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def wrapped(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            def act() -> int:
                return real(path, flags, *args, **kwargs)

            if not flags & (os.O_WRONLY | os.O_RDWR):
                return act()
            kind = "open" if os.path.lexists(path) else "create"
            done: int = self._do(Operation(kind, self._name(path)), act)
            return done

        return wrapped

    def _of_handle(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(handle: int, *content: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{handle}")

            def half() -> Any:
                """Write only the first half, as a nearly full disk does."""
                return real(handle, content[0][: len(content[0]) // 2]) if content else None

            stat = os.fstat(handle)
            operation = Operation(kind, path, inode=stat.st_ino, size_bytes=stat.st_size)
            return self._do(operation, lambda: real(handle, *content), half)

        return wrapped

    @staticmethod
    def _name(path: Any) -> str:
        return os.path.abspath(os.fspath(path))

    def _do(
        self, operation: Operation, act: Callable[[], Any], half: Callable[[], Any] = lambda: None
    ) -> Any:
        if not f"{operation.path}/".startswith(f"{self._folder}/"):
            # An fsync of the parent makes the folder itself durable: log it without counting it.
            in_parent = operation.path == os.path.dirname(self._folder)
            return self._logged(operation, act) if in_parent else act()
        number = int.from_bytes(self._count[:8], "little")
        self._count[:8] = (number + 1).to_bytes(8, "little")
        fault = self.fault
        after = 0 if fault.at is None else number - fault.at
        if fault.at is None or after < 0 or (after > 0 and fault.kind not in ("full", "lost")):
            return self._logged(operation, act)
        return self._fail(operation, act, half, first=after == 0)

    def _fail(
        self,
        operation: Operation,
        act: Callable[[], Any],
        half: Callable[[], Any],
        *,
        first: bool,
    ) -> Any:
        kind = self.fault.kind
        if kind == "eio":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if kind == "full":
            if operation.kind == "write" and first:
                return self._logged(operation, half)
            if operation.kind in ("write", "create", "mkdir"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self._logged(operation, act)
        if kind == STOPPED:
            os.kill(os.getpid(), signal.SIGSTOP)
            return self._logged(operation, act)
        if kind == "lost" and first:
            return None
        if kind == "power":
            self._logged(operation, act)
        if kind == "half":
            half()
        os.kill(os.getpid() if kind == "alone" else 0, signal.SIGKILL)
        raise AssertionError("killed")

    def _logged(self, operation: Operation, act: Callable[[], Any]) -> Any:
        done = act()
        self._write(self._log, json.dumps(asdict(operation)).encode() + b"\n")
        return done
