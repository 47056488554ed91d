"""Run cells as tasks of the connected Ray cluster, like `harness.cells.workers.run_jobs`.

In: cells. Out: events in chronological order, and the folders of cells, which come home as bytes
and are renamed to their names when they are complete. A cell whose node or worker process died runs
again on another.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cells.folder import is_done, remove_aside, set_aside
from harness.cells.workers import Ended, Event, Started, Tick, Ticked
from harness.cluster.connection import Needs, import_ray
from harness.cluster.node import NodeResult, Ticks, code_of, run_on_node
from harness.console import print_message
from harness.sweep.finished import complete_folder
from harness.sweep.plan import SweepPlan
from servers.basics.atomic import sync, write_all
from servers.basics.errors import CannotWrite, EngineError, InvalidInput
from servers.basics.text import one_line

RETRIES = 3
"""How often a cell runs again after its node or its worker process died."""
TICK_INTERVAL_S = 0.5
AHEAD = 2
"""Tasks for each slot of the cluster: the next one starts without waiting for bench, and an
autoscaler sees that more nodes would help."""


@dataclass(slots=True)
class _Task:
    number: int
    job: Any
    attempts: int = 0


@dataclass(slots=True)
class RayPool:
    """The tasks of one sweep."""

    folder: Path
    """The run folder, or the folder that contains several."""
    needs: Needs
    use_core: bool
    """Whether nodes that have a compiled core may use it."""
    at_most: int | None = None
    """Limit of tasks at a time (`--workers`)."""
    _ray: Any = field(default_factory=import_ray)
    _running: dict[Any, _Task] = field(default_factory=dict)
    _given: int = 0

    def run_jobs(
        self,
        jobs: Iterable[Any],
        run: Callable[[Any, Any, Tick], None],
        shared: Any,
        workers: int,
        more: Callable[[], Iterable[Any]] = tuple,
    ) -> Generator[Event[Any], None, None]:
        """Closing the generator ends the running cells. The cluster decides how many run at a time,
        not `workers`."""
        try:
            yield from self._events(deque(self._tasks(jobs)), run, shared, more)
        except (ConnectionError, self._ray.exceptions.RaySystemError) as error:
            raise EngineError(
                f"the Ray cluster no longer answers ({one_line(str(error))}); finished cells are "
                "kept, run the same command again"
            ) from None
        finally:
            for reference in self._running:
                self._ray.cancel(reference, force=True)

    def _events(
        self,
        queue: deque[_Task],
        run: Callable[[Any, Any, Tick], None],
        shared: Any,
        more: Callable[[], Iterable[Any]],
    ) -> Generator[Event[Any], None, None]:
        work = [self._ray.put((shared, code_of(shared)))]
        ticks = self._ray.remote(num_cpus=0, max_restarts=-1)(Ticks).remote()
        task_of = self._ray.remote(
            num_cpus=self.needs.cores, num_gpus=self.needs.gpus, max_retries=0
        )(run_on_node)
        progress, ended = ticks.take.remote(), True
        while True:
            slots = self.slots()
            if ended and len(queue) + len(self._running) < slots:
                queue.extend(self._tasks(more()))
            if not queue and not self._running:
                return
            ended = False
            while queue and len(self._running) < min(AHEAD * slots, self.at_most or AHEAD * slots):
                task = queue.popleft()
                if not task.attempts:
                    yield Started(task.job)
                task.attempts += 1
                call = pickle.dumps((run, task.job))
                reference = task_of.remote(work, call, task.number, ticks, self.use_core)
                self._running[reference] = task
            ready, _ = self._ray.wait([*self._running], timeout=TICK_INTERVAL_S)
            for reference in ready:
                task = self._running.pop(reference)
                event = self._end(reference, task)
                if event is None:
                    queue.appendleft(task)
                    continue
                ended = True
                yield event
            if self._ray.wait([progress], timeout=0)[0]:
                yield from self._ticked(progress)
                progress = ticks.take.remote()

    def _tasks(self, jobs: Iterable[Any]) -> list[_Task]:
        tasks = [_Task(self._given + index, job) for index, job in enumerate(jobs)]
        self._given += len(tasks)
        return tasks

    def slots(self) -> int:
        """Return how many cells the cluster can run at a time; nodes may come and go."""
        total: Mapping[str, float] = self._ray.cluster_resources()
        slots = total.get("CPU", 0) // self.needs.cores
        if self.needs.gpus:
            slots = min(slots, total.get("GPU", 0) // self.needs.gpus)
        return max(int(slots), 1)

    def _ticked(self, progress: Any) -> Generator[Event[Any], None, None]:
        try:
            latest = self._ray.get(progress)
        except self._ray.exceptions.RayError:  # the node of the actor died; it starts on another
            return
        for task in self._running.values():
            if task.number in latest:
                yield Ticked(task.job, *latest[task.number])

    def _end(self, reference: Any, task: _Task) -> Event[Any] | None:
        """Return the end of a task; None if it must run again."""
        died = self._ray.exceptions
        try:
            result: NodeResult = self._ray.get(reference)
        except died.RayTaskError as error:
            return Ended(task.job, f"on its node: {one_line(str(error.cause))}\n{error}")
        except (
            died.WorkerCrashedError,
            died.NodeDiedError,
            died.LocalRayletDiedError,
            died.OutOfMemoryError,
            died.ObjectLostError,
        ) as error:
            return self._again(task, error)
        kind, problem = result.outcome
        if kind == "unwritable":
            raise CannotWrite(f"on node {result.node}: {problem}")
        write_cell_folder(result.files, self.folder / task.job.name)
        return Ended(task.job, problem)

    def _again(self, task: _Task, error: Exception) -> Event[Any] | None:
        kind = type(error).__name__
        if task.attempts > RETRIES:
            return Ended(
                task.job,
                f"its node or worker process died {task.attempts} times ({kind}); out of memory?",
            )
        print_message(
            f"{task.job.name}: its node or worker process died ({kind}); it runs again, retry "
            f"{task.attempts} of {RETRIES}"
        )
        return None


def needs_of(plan: SweepPlan, cluster: str) -> Needs:
    """Return what a cell needs of its node. Raises InvalidInput for cells that cannot run on
    another machine, or not beside each other."""
    kind = plan.engine.kind
    if plan.agents is not None:
        raise InvalidInput(
            f"--cluster {cluster}: {plan.settings.agents.flag} needs files of this machine; run a "
            "shard on each machine with --shard instead"
        )
    if kind.is_virtual:
        return Needs(1, 0)
    if kind.is_remote:
        raise InvalidInput(
            f"--cluster {cluster}: --engine {kind.name} is one server, on which cells run one "
            "after the other; remove --cluster"
        )
    gpus = plan.engine.settings().gpus
    if not gpus:
        raise InvalidInput(
            f"--cluster {cluster}: --engine {kind.name} uses all cores of a machine without GPUs, "
            "so cells would disturb each other; run a shard on each machine with --shard instead"
        )
    return Needs(1, gpus)


def write_cell_folder(files: Mapping[str, bytes], cell: Path) -> None:
    """Write the folder of a cell, completely or not at all."""
    with complete_folder(cell) as copying:
        set_aside(cell)
        os.mkdir(copying)
        for name, content in files.items():
            path = copying / name
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(handle, content)
                os.fsync(handle)
            finally:
                os.close(handle)
        for folder in {copying, *(path.parent for path in copying.rglob("*"))}:
            sync(folder)
    if is_done(cell):
        remove_aside(cell)
