"""Finds deleted files that a program still has open, because they take disk space.

Reads /proc (Linux). Files that are only mapped, or were sent over a socket, are not found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

BLOCK_BYTES = 512
"""The unit of `st_blocks` on all file systems."""


def deleted_files(processes: Iterable[int], device: int) -> dict[int, int] | None:
    """Return the bytes of each deleted file on a device, by inode.

    Returns None if the open files of a process cannot be read.
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
