"""Faults at the file layer: what goes wrong at the n-th operation on files below a folder.

An operation is what asks something of the disk: open for writing, mkdir, write, fsync, rename.
They are counted over a process and all that it forks, and written to a log, a line each.
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
    "full": "no space left from here on; of a write, the first half still fits",
    "eio": "an input/output error, once",
    "killed": "the process dies before it",
    "half": "it dies within it: the first half of a write is there",
    "lost": "a rename that is told to have been done, and then it dies: the old name is there",
    "alone": "the worker dies before it, and its parent goes on",
    "power": "the power goes after it: what was not synced is gone (`power.py`)",
}
STOPPED = "stopped"
"""No fault: the worker waits before it (SIGSTOP), and goes on when it may."""


@dataclass(frozen=True, slots=True)
class Operation:
    kind: str
    path: str
    to: str = ""
    """Of a rename."""
    inode: int = 0
    size_bytes: int = 0
    """Of an fsync: what lasts."""


@dataclass(frozen=True, slots=True)
class Fault:
    folder: str
    log: str
    at: int | None = None
    """From 0; None: never."""
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
        """Shared with all that is forked."""
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
                """Of a write: a short one, as a disk that is nearly full does it."""
                return real(handle, content[0][: len(content[0]) // 2]) if content else None

            found = os.fstat(handle)
            operation = Operation(kind, path, inode=found.st_ino, size_bytes=found.st_size)
            return self._do(operation, lambda: real(handle, *content), half)

        return wrapped

    @staticmethod
    def _name(path: Any) -> str:
        return os.path.abspath(os.fspath(path))

    def _do(
        self, operation: Operation, act: Callable[[], Any], half: Callable[[], Any] = lambda: None
    ) -> Any:
        if not f"{operation.path}/".startswith(f"{self._folder}/"):
            # What makes the folder's own name last is not counted, but known.
            above = operation.path == os.path.dirname(self._folder)
            return self._noted(operation, act) if above else act()
        number = int.from_bytes(self._count[:8], "little")
        self._count[:8] = (number + 1).to_bytes(8, "little")
        fault = self.fault
        after = 0 if fault.at is None else number - fault.at
        if fault.at is None or after < 0 or (after > 0 and fault.kind not in ("full", "lost")):
            return self._noted(operation, act)
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
                return self._noted(operation, half)
            if operation.kind in ("write", "create", "mkdir"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self._noted(operation, act)
        if kind == STOPPED:
            os.kill(os.getpid(), signal.SIGSTOP)
            return self._noted(operation, act)
        if kind == "lost" and first:
            return None
        if kind == "power":
            self._noted(operation, act)
        if kind == "half":
            half()
        os.kill(os.getpid() if kind == "alone" else 0, signal.SIGKILL)
        raise AssertionError("killed")

    def _noted(self, operation: Operation, act: Callable[[], Any]) -> Any:
        done = act()
        self._write(self._log, json.dumps(asdict(operation)).encode() + b"\n")
        return done
