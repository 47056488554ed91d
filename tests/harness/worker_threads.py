"""Threads in place of the worker processes of sweeps, which saves the start of a process each."""

from __future__ import annotations

import multiprocessing
import pickle
from contextlib import suppress
from threading import Thread
from typing import Any

from harness.cells.workers import _serve, _Worker


class WorkerThread(Thread):
    """Serves jobs like a worker process, until the other end of its pipe is closed."""

    exitcode = 0

    def __init__(self, run: Any, shared: Any) -> None:
        super().__init__()
        self.pipe, self._own_end = multiprocessing.Pipe()
        self._work = pickle.dumps((run, shared))  # a process would get a copy, too

    def run(self) -> None:
        with self._own_end, suppress(BrokenPipeError):
            _serve(self._own_end, *pickle.loads(self._work))  # noqa: S301

    def terminate(self) -> None:
        self.pipe.close()

    kill = terminate


def start(run: Any, shared: Any) -> _Worker:
    worker = WorkerThread(run, shared)
    worker.start()
    return _Worker(worker, worker.pipe)  # type: ignore[arg-type]
