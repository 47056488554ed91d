"""Defers SIGTERM while the parent does what must not be interrupted halfway."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigterm_deferred() -> Iterator[None]:
    """Deliver a SIGTERM that arrives within the block after its end. Call it in the main thread.

    A process of multiprocessing reads what it is to run from a pipe. If a handler of its parent
    raises while the parent writes there, the process prints a traceback about truncated data.
    """
    received = False

    def record(_number: int, _frame: object) -> None:
        nonlocal received
        received = True

    handler = signal.signal(signal.SIGTERM, record)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        if received:
            os.kill(os.getpid(), signal.SIGTERM)
