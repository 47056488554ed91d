"""Measures the memory of a sandbox's processes from outside the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil


def memory_of(pid: int, more_than_bytes: int = 0) -> int:
    """Return the memory of a process and its descendants in bytes, with shared pages counted once.

    Counting shared pages once (PSS) is expensive, because the kernel walks all pages. If the sum of
    the resident sizes (RSS), which is never smaller, is at most `more_than_bytes`, that sum is
    returned instead. Files in a tmpfs are not counted.
    """
    tree = process_tree(pid)
    resident_bytes = _sum(tree, lambda process: process.memory_info().rss)
    if resident_bytes <= more_than_bytes:
        return resident_bytes
    return _sum(tree, lambda process: process.memory_full_info().pss)


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, or an empty list if the process has ended."""
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _sum(processes: Iterable[psutil.Process], read: Callable[[psutil.Process], int]) -> int:
    total = 0
    for process in processes:
        with suppress(psutil.Error):  # the process has ended, or belongs to another user
            total += read(process)
    return total
