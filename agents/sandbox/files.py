"""Limits the disk space and the number of files of a program, at low cost.

Counting files means walking all of them. A program's files cannot grow by more than the usage of
their file system, which one call returns (statvfs), so they are counted only if that growth could
exceed the limit, and every RECOUNT_S, since space that other programs free hides growth. A deleted
file counts while the program has it open.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

from agents.sandbox.memory import process_tree

BLOCK_BYTES = 512
"""The unit of `st_blocks` on all file systems."""


def deleted_files(processes: Iterable[int], device: int) -> dict[int, int] | None:
    """Return the bytes of each deleted file on a device, by inode.

    Files that are only mapped, or were sent over a socket, are not found. Returns None if the open
    files of a process cannot be read.
    """
    deleted: dict[int, int] = {}
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            # A thread may have its own table of open files.
            for thread in Path(f"/proc/{pid}/task").iterdir():
                try:
                    deleted |= _deleted(thread, device)
                except PermissionError:
                    if _is_running(thread):
                        return None
    return deleted


def _deleted(thread: Path, device: int) -> dict[int, int]:
    deleted = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for fd in os.listdir(thread / "fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                status = os.stat(thread / "fd" / fd)
                if status.st_nlink == 0 and status.st_dev == device:
                    deleted[status.st_ino] = status.st_blocks * BLOCK_BYTES
    return deleted


def _is_running(thread: Path) -> bool:
    """Return whether a thread exists and is not a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


MAX_FILES = 2_000_000
RECOUNT_S = 300.0
WALK_TIMEOUT_S = 60.0
DU = ("du", "-s", "-x")
UNIT_BYTES = 1024


class LimitedQuantity(StrEnum):
    """The limited quantity, as the option of `du` that counts it (bytes in units of UNIT_BYTES)."""

    BYTES = "-k"
    NUMBER = "--inodes"


@dataclass(slots=True)
class _Limit:
    kind: LimitedQuantity
    maximum: int
    label: str
    file_system_usage: int
    """Usage of the whole file system at the last check."""
    upper_bound: int = 0
    """Upper bound of the program's usage."""


class DiskUsage:
    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        count: Callable[[LimitedQuantity], int | None] | None = None,
    ) -> None:
        """Create it before the program starts. Raises OSError.

        `folder` is on the file system of the program's files. `count` returns their bytes or
        number, or None if they cannot be counted; by default it counts all files in `folder`.
        """
        self._folder = folder
        self._count = count or partial(folder_usage, folder)
        self._counted_s = -math.inf
        used = _usage(folder)
        gib = f"{limit_bytes / (1 << 30):g} GiB of files"
        self._limits = (
            _Limit(LimitedQuantity.BYTES, limit_bytes, gib, used[LimitedQuantity.BYTES]),
            _Limit(
                LimitedQuantity.NUMBER,
                MAX_FILES,
                f"{MAX_FILES} files",
                used[LimitedQuantity.NUMBER],
            ),
        )

    def exceeded_limit(self) -> str | None:
        """Return the limit that the files exceed ("10 GiB of files"), or None."""
        used = _usage(self._folder)
        recount = time.monotonic() - self._counted_s >= RECOUNT_S
        if recount:
            self._counted_s = time.monotonic()
        for limit in self._limits:
            limit.upper_bound += max(used[limit.kind] - limit.file_system_usage, 0)
            limit.file_system_usage = used[limit.kind]
            if recount or limit.upper_bound > limit.maximum:
                counted = self._count(limit.kind)
                limit.upper_bound = limit.upper_bound if counted is None else counted
                if limit.upper_bound > limit.maximum:
                    return limit.label
        return None


def _usage(folder: Path) -> dict[LimitedQuantity, int]:
    status = os.statvfs(folder)
    return {
        LimitedQuantity.BYTES: (status.f_blocks - status.f_bfree) * status.f_frsize,
        LimitedQuantity.NUMBER: status.f_files - status.f_ffree,
    }


def program_usage(folder: Path, pid: int, kind: LimitedQuantity) -> int | None:
    """Return the usage of a process tree: files in the folder, and deleted files that are open."""
    in_folder = folder_usage(folder, kind)
    pids = [process.pid for process in process_tree(pid)]
    open_only = deleted_files(pids, os.stat(folder).st_dev)
    if in_folder is None or open_only is None:
        return None
    return in_folder + (
        sum(open_only.values()) if kind is LimitedQuantity.BYTES else len(open_only)
    )


def folder_usage(folder: Path, kind: LimitedQuantity) -> int | None:
    """Return the bytes or number of the files in a folder, or None if they cannot be counted.

    A program may make folders unreadable, or so many that counting takes too long. Files may be
    removed during the count. Returns 0 if `du` (of busybox) does not support this kind.
    """
    try:
        if kind is LimitedQuantity.NUMBER and not _counts_files():
            return 0
        process = _du(kind, folder)
        counted = int(process.stdout.split()[0])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None
    if "Permission denied" in process.stderr:
        return None
    return counted * UNIT_BYTES if kind is LimitedQuantity.BYTES else counted


@cache
def _counts_files() -> bool:
    return _du(LimitedQuantity.NUMBER, Path(os.devnull)).returncode == 0


def _du(kind: LimitedQuantity, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [*DU, kind, "--", str(path)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=WALK_TIMEOUT_S,
        check=False,
    )
