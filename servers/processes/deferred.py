"""Signals that end a process in order, and their deferral while the parent does what must not be
interrupted halfway."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end `bench` like Ctrl-C."""
FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that a terminal sends to all of its processes. The parent ends the others."""


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Deliver a signal that arrives within the block after its end. Call it in the main thread. In
    processes that are started in the block, signals of the terminal are blocked until they call
    `leave_to_parent`.

    A process of multiprocessing reads what it is to run from a pipe. If a handler of its parent
    raises while the parent writes there, the process prints a traceback about truncated data.
    """
    from multiprocessing import resource_tracker  # which few commands need

    received: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    resource_tracker.ensure_running()  # its start unblocks SIGINT
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, FROM_TERMINAL)
    handlers = {
        number: signal.signal(number, record)
        for number in (signal.SIGINT, *ENDING)
        if signal.getsignal(number) != signal.SIG_IGN  # nohup; processes inherit that
    }
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            os.kill(os.getpid(), received[0])


def leave_to_parent() -> None:
    """Ignore signals of the terminal, which the parent handles. Processes that this one starts
    inherit only that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FROM_TERMINAL)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass
