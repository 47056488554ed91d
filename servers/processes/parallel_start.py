"""Starts several servers in parallel. If one fails or the start is interrupted, all are stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from functools import partial
from typing import Protocol, TypeVar

from servers.basics.errors import EngineError

Progress = Callable[[float, str], None]
"""Receives the seconds since the start and the last line of the log."""


class Stoppable(Protocol):
    def stop(self) -> None: ...


S = TypeVar("S", bound=Stoppable)


def start_parallel(
    count: int, launch: Callable[[int, Progress], S], on_progress: Progress | None
) -> list[S]:
    """Call `launch` with the numbers 0 to `count` - 1. Raises its errors. `on_progress` receives
    the progress of the first server."""
    abandoned = threading.Event()

    def report(number: int, seconds: float, line: str) -> None:
        if abandoned.is_set():
            raise EngineError("another replica failed to start")
        if number == 0 and on_progress is not None:
            on_progress(seconds, line)

    if count == 1:  # without a thread, so that an interruption ends it at once
        return [launch(0, partial(report, 0))]
    with ThreadPoolExecutor(count) as pool:
        starts = [pool.submit(launch, number, partial(report, number)) for number in range(count)]
        try:
            for completed in as_completed(starts):
                completed.result()
        except BaseException:
            abandoned.set()
            wait(starts)
            for start in starts:
                if start.exception() is None:
                    start.result().stop()
            raise
    return [start.result() for start in starts]
