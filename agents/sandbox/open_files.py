"""Files that a program has deleted and still holds open: on the disk, and in no folder.

Linux, from /proc. Those that it only maps, or has sent to a socket, are not found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

BLOCK_BYTES = 512
"""Of `st_blocks`, on any file system."""


def deleted(processes: Iterable[int], device: int) -> dict[int, int] | None:
    """Bytes of each on that device, by inode. None where a process does not show what it has
    open; one that has ended has nothing."""
    found: dict[int, int] = {}
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            # A thread may have a table of open files of its own.
            for thread in Path(f"/proc/{pid}/task").iterdir():
                try:
                    found |= _deleted(thread, device)
                except PermissionError:
                    if _lives(thread):
                        return None
    return found


def _deleted(thread: Path, device: int) -> dict[int, int]:
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for fd in os.listdir(thread / "fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                seen = os.stat(thread / "fd" / fd)
                if seen.st_nlink == 0 and seen.st_dev == device:
                    found[seen.st_ino] = seen.st_blocks * BLOCK_BYTES
    return found


def _lives(thread: Path) -> bool:
    """Neither ended nor about to be taken note of."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
