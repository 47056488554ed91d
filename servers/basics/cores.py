"""The CPU cores that this process may use."""

from __future__ import annotations

import os


def cpu_cores() -> int:
    """Return their number. macOS does not limit a process to some of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
