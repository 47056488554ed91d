"""Processes that tests start: which ones run, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

POLL_S = 0.005
TIMEOUT_S = 300.0
"""Limit for every wait; the machine may be busy."""


class Process(NamedTuple):
    pid: int
    state: str
    """As in `man proc`."""
    group: int
    session: int


def processes() -> Iterator[Process]:
    """Yield all processes of the machine, without zombies."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group, session = path.read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                yield Process(int(path.parent.name), state, int(group), int(session))


def group_of(leader: int) -> list[Process]:
    return [process for process in processes() if process.group == leader]


def session_of(leader: int) -> list[Process]:
    return [process for process in processes() if process.session == leader]


def wait_until(
    condition: Callable[[], object], within_s: float = TIMEOUT_S, process: Popen[Any] | None = None
) -> None:
    """Wait for the condition; fail after `within_s` or if the process exits earlier."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)


def wait_until_none(left: Callable[[], object], within_s: float = TIMEOUT_S) -> None:
    """Wait until nothing is left; after `within_s`, fail with what is left."""
    deadline_s = time.monotonic() + within_s
    while found := left():
        assert time.monotonic() < deadline_s, found
        time.sleep(POLL_S)


def wait_until_gone(pids: Sequence[int], within_s: float = TIMEOUT_S) -> None:
    """Wait until the processes have ended and were reaped."""
    wait_until_none(lambda: [pid for pid in pids if Path(f"/proc/{pid}").exists()], within_s)
