"""What a program's files take of the disk, looked at twice a second for next to nothing.

Out: why they are too much, in bytes or in number. Who counts them has to walk them all; but they
cannot have grown by more than what their whole file system has, which is one call (statvfs). So
they are counted where that may have led past the limit, and every RECOUNT_S in case others have
freed as much meanwhile. A file that is deleted counts as long as the program holds it open.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

from agents.sandbox.memory import process_tree
from agents.sandbox.open_files import deleted

MOST_FILES = 2_000_000
RECOUNT_S = 300.0
WALK_WITHIN_S = 60.0
DU = ("du", "-s", "-x")
UNIT_BYTES = 1024


class Kind(StrEnum):
    """What is limited, as `du` calls it; its bytes are in `UNIT_BYTES`."""

    BYTES = "-k"
    NUMBER = "--inodes"


@dataclass(slots=True)
class _Limit:
    kind: Kind
    most: int
    told: str
    used_before: int
    """Of all the file system."""
    most_now: int = 0
    """What the program can have now at the most."""


class Files:
    def __init__(
        self, place: Path, limit_bytes: int, count: Callable[[Kind], int | None] | None = None
    ) -> None:
        """Before the program begins. `place`: on the file system that takes them. `count`: what
        they are, None where that cannot be said; else all in `place` is counted. Raises an
        OSError."""
        self._place = place
        self._count = count or partial(walked, place)
        self._counted_s = -math.inf
        used = _used(place)
        gib = f"{limit_bytes / (1 << 30):g} GiB of files"
        self._limits = (
            _Limit(Kind.BYTES, limit_bytes, gib, used[Kind.BYTES]),
            _Limit(Kind.NUMBER, MOST_FILES, f"{MOST_FILES} files", used[Kind.NUMBER]),
        )

    def too_much(self) -> str | None:
        """The limit that is passed."""
        used = _used(self._place)
        recount = time.monotonic() - self._counted_s >= RECOUNT_S
        if recount:
            self._counted_s = time.monotonic()
        for limit in self._limits:
            limit.most_now += max(used[limit.kind] - limit.used_before, 0)
            limit.used_before = used[limit.kind]
            if recount or limit.most_now > limit.most:
                counted = self._count(limit.kind)
                limit.most_now = limit.most_now if counted is None else counted
                if limit.most_now > limit.most:
                    return limit.told
        return None


def _used(place: Path) -> dict[Kind, int]:
    seen = os.statvfs(place)
    return {
        Kind.BYTES: (seen.f_blocks - seen.f_bfree) * seen.f_frsize,
        Kind.NUMBER: seen.f_files - seen.f_ffree,
    }


def taken(folder: Path, pid: int, kind: Kind) -> int | None:
    """By a process and all below it: in the folder, or deleted and open."""
    in_it = walked(folder, kind)
    pids = [process.pid for process in process_tree(pid)]
    apart = deleted(pids, os.stat(folder).st_dev)
    if in_it is None or apart is None:
        return None
    return in_it + (sum(apart.values()) if kind is Kind.BYTES else len(apart))


def walked(folder: Path, kind: Kind) -> int | None:
    """None where it cannot be said: a program may lock its folders, or make a maze of them. What
    only vanishes meanwhile is no matter. 0 where this `du` (busybox') does not count that."""
    try:
        if kind is Kind.NUMBER and not _numbers():
            return 0
        ran = _du(kind, folder)
        counted = int(ran.stdout.split()[0])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None
    if "Permission denied" in ran.stderr:
        return None
    return counted * UNIT_BYTES if kind is Kind.BYTES else counted


@cache
def _numbers() -> bool:
    return _du(Kind.NUMBER, Path(os.devnull)).returncode == 0


def _du(kind: Kind, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [*DU, kind, "--", str(path)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=WALK_WITHIN_S,
        check=False,
    )
