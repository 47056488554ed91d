"""Run jobs in worker processes. In: jobs. Out: events of the jobs in chronological order.

A worker receives the shared data at its start, and then one job at a time. If a worker dies, only
its own job fails. All workers end when the parent process ends.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

from servers.basics.errors import FULL, CannotWrite, CellFailed, EngineError
from servers.processes.deferred import leave_to_parent, signals_deferred

Job = TypeVar("Job")
Tick = Callable[[int, str], None]
"""Reports the progress of a job in units that the caller chooses, and its current stage."""
RARE_COLLECTIONS = 20_000, 20, 100
"""Thresholds of the garbage collector. A simulated cell creates hardly any cycles before its end,
and with Python's thresholds the search for them takes half the time of a model with windows."""
STOP_TIMEOUT_S = 30.0
"""Time for a worker to end its processes after SIGTERM before it is killed."""


@dataclass(frozen=True, slots=True)
class Started(Generic[Job]):
    job: Job


@dataclass(frozen=True, slots=True)
class Ticked(Generic[Job]):
    job: Job
    amount: int
    stage: str


@dataclass(frozen=True, slots=True)
class Ended(Generic[Job]):
    job: Job
    error: str | None
    """One line, followed by the traceback of an exception; None if the job succeeded."""


Event = Started[Job] | Ticked[Job] | Ended[Job]


@dataclass(frozen=True, slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection

    def stop(self, deadline_s: float) -> None:
        """Wait until the deadline for a worker that got SIGTERM, then kill it."""
        self.process.join(max(deadline_s - time.monotonic(), 0))
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_jobs(
    jobs: Iterable[Job],
    run: Callable[[Any, Job, Tick], None],
    shared: Any,
    workers: int,
    more: Callable[[], Iterable[Job]] = tuple,
) -> Generator[Event[Job], None, None]:
    """Call `run(shared, job, tick)` for each job. Closing the generator ends the running jobs.

    `more` is called at the start and after the end of a job, while a worker is idle; it may return
    further jobs.
    """
    queue = deque(jobs)
    ended = True
    idle: list[_Worker] = []
    busy: dict[Any, tuple[_Worker, Job]] = {}
    try:
        while True:
            if ended and len(queue) + len(busy) < workers:
                queue.extend(more())
            if not queue and not busy:
                break
            ended = False
            while queue and len(busy) < workers:
                worker = idle.pop() if idle else _start(run, shared)
                job = queue.popleft()
                busy[worker.pipe] = worker, job
                yield Started(job)
                with suppress(BrokenPipeError):  # died while idle; `_receive` reports it
                    worker.pipe.send(job)
            for pipe in wait(list(busy)):
                worker, job = busy[pipe]
                event = _receive(worker, job)
                if isinstance(event, Ended):
                    del busy[pipe]
                    ended = True
                    if worker.process.is_alive():
                        idle.append(worker)
                yield event
    finally:
        workers_left = [*idle, *(worker for worker, _ in busy.values())]
        for worker in workers_left:
            worker.process.terminate()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for worker in workers_left:
            worker.stop(deadline_s)


def _receive(worker: _Worker, job: Job) -> Event[Job]:
    try:
        kind, value = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return Ended(job, _exit_message(worker.process.exitcode))
    if kind == "unwritable":
        raise CannotWrite(value)
    return Ticked(job, *value) if kind == "tick" else Ended(job, value)


def _exit_message(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        hint = " (out of memory? try fewer --workers)" if name == "SIGKILL" else ""
        return f"its worker process was killed by {name}{hint}"
    return f"its worker process ended with exit code {exit_code}"


def _start(run: Callable[[Any, Job, Tick], None], shared: Any) -> _Worker:
    context = multiprocessing.get_context("spawn")
    parent_end, worker_end = context.Pipe()
    process = context.Process(target=_work, args=(worker_end, run, shared), daemon=True)
    with signals_deferred():
        process.start()
    worker_end.close()
    return _Worker(process, parent_end)


def _work(pipe: Connection, run: Callable[[Any, Job, Tick], None], shared: Any) -> None:
    leave_to_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    gc.freeze()
    gc.set_threshold(*RARE_COLLECTIONS)

    def run_and_collect(shared: Any, job: Job, tick: Tick) -> None:
        try:
            run(shared, job, tick)
        finally:
            gc.collect()

    _serve(pipe, run_and_collect, shared)


def _serve(pipe: Connection, run: Callable[[Any, Job, Tick], None], shared: Any) -> None:
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(run, shared, job, lambda *progress: pipe.send(("tick", progress))))


def attempt(
    run: Callable[[Any, Job, Tick], None], shared: Any, job: Job, tick: Tick
) -> tuple[str, str | None]:
    """Run a job. Return "ended" and its error, or "unwritable" and an error that ends all jobs."""
    try:
        run(shared, job, tick)
    except CannotWrite as error:
        return "unwritable", str(error)
    except OSError as error:
        if error.errno in FULL:  # all other cells would fail as well
            return "unwritable", str(CannotWrite.of(Path(str(error.filename or ".")), error))
        return "ended", _with_traceback(error)
    except (CellFailed, EngineError) as error:
        return "ended", str(error)
    except Exception as error:  # an error of a policy must not end the other cells
        return "ended", _with_traceback(error)
    return "ended", None


def _with_traceback(error: Exception) -> str:
    return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def _exit_with_parent() -> None:
    """Exit when the parent ends, so that no worker writes into the folder of a killed sweep."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
