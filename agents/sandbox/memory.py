"""What a sandbox's processes hold, as seen from outside. Linux, from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def memory_of(pid: int, more_than_bytes: int = 0) -> int:
    """Bytes of memory that a process and all below it hold, what several share counted once.

    That is dear to ask (PSS: the kernel walks their pages), so where even the sum of what each has
    (RSS) is not more than `more_than_bytes`, the answer is that sum. What files of a tmpfs hold is
    not in it."""
    tree = tree_of(pid)
    rough_bytes = sum(map(_resident_bytes, tree))
    return sum(map(_share_bytes, tree)) if rough_bytes > more_than_bytes else rough_bytes


def tree_of(pid: int) -> list[int]:
    """A process and all below it."""
    tree = [pid]
    for parent in tree:
        tree += _children(parent)
    return tree


def _children(pid: int) -> list[int]:
    """Of each of its threads: a child is its thread's that made it."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return children


def _resident_bytes(pid: int) -> int:
    with suppress(OSError):
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _share_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
