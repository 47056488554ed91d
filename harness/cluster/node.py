"""Run one cell on a node of a Ray cluster. In: a pickled cell. Out: the bytes of the cell's files.

The node needs the same version of Turnstile, but no disk that it shares with other machines. At its
top, this module imports nothing that has a compiled form, so that a worker process can still choose
between the compiled core and the sources.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servers.basics.compiled_core import WORKER, find_core, use_offered_core

if TYPE_CHECKING:
    from harness.sweep.cell import Work

SCRATCH = "turnstile-cell-"
_work: dict[str, tuple[Any, str]] = {}
"""The work that this process has received, and what prevents it here, by the id of its object, so
that each process receives and unpickles it once."""


class NodeResult(NamedTuple):
    outcome: tuple[str, str | None]
    """As `harness.cells.workers.attempt` returns it."""
    files: dict[str, bytes]
    """Contents of the cell's files by path, also of a failed cell."""
    node: str


class Ticks:
    """An actor that collects the progress of running cells until the driver takes it."""

    def __init__(self) -> None:
        self._latest: dict[int, tuple[int, str]] = {}

    def put(self, task: int, amount: int, stage: str) -> None:
        self._latest[task] = amount, stage

    def take(self) -> dict[int, tuple[int, str]]:
        taken, self._latest = self._latest, {}
        return taken


def run_on_node(work: list[Any], call: bytes, task: int, ticks: Any, use_core: bool) -> NodeResult:
    """`work` contains the reference of the object, which Ray would unpickle for each call if it
    were an argument itself. `call` is the pickled function and cell."""
    _prepare_process(use_core)
    from harness.cells.workers import attempt

    run, cell = pickle.loads(call)  # noqa: S301 (of the driver, which may run any code here)
    received, problem = _received(work[0])
    node = platform.node()
    if problem:
        return NodeResult(("ended", f"on node {node}: {problem}"), {}, node)
    with _scratch() as scratch:
        folder = scratch / cell.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        tick = partial(ticks.put.remote, task)
        outcome = attempt(run, in_folder(received, scratch), cell, tick)
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
    gc.collect()
    return NodeResult(outcome, files, node)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a new folder on this node, and remove the folders of workers that were killed here."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with _locked(path) as is_mine:
            if is_mine:
                shutil.rmtree(path, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
        with _locked(folder) as is_mine:
            if not is_mine:  # another worker took it for one of a killed worker
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder until the end of this context or process; yield whether it could be locked and
    still exists."""
    from servers.basics.atomic import take_lock

    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield take_lock(handle, 0) and folder.exists()
    finally:
        os.close(handle)


@cache
def _prepare_process(use_core: bool) -> None:
    if use_core and (folder := find_core().folder) is not None:
        os.environ[WORKER] = str(folder)
        use_offered_core()
    from harness.cells.workers import RARE_COLLECTIONS

    gc.set_threshold(*RARE_COLLECTIONS)


def _received(reference: Any) -> tuple[Any, str]:
    import ray

    key = reference.hex()
    if key not in _work:
        _work.clear()
        work, code = ray.get(reference)
        _work[key] = work, _other_code(work, code)
        gc.freeze()
    return _work[key]


def in_folder(work: Mapping[str, Work], folder: Path) -> dict[str, Work]:
    """Return the work of plans by name, with another folder for its cells."""
    return {name: replace(each, folder=folder / name) for name, each in work.items()}


def code_of(work: Mapping[str, Work]) -> str:
    """Return a hash of the code that decides cells, with all policies and routers."""
    from harness.sweep.fingerprint import code_sha256

    plan = next(iter(work.values())).plan
    parts = (plan.engine, plan.workload, plan.arrivals, plan.background)
    code = code_sha256(*parts, agents=plan.agents)
    content = repr((code, plan.sweep_record().variants))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _other_code(work: Mapping[str, Work], code: str) -> str:
    """Return what differs if this node would compute other results than a machine with this code;
    empty if nothing does."""
    if (here := code_of(work)) == code:
        return ""
    return (
        f"has other code (sha256 {here}, where bench runs {code}); install the same version of "
        "Turnstile and of your policies on all nodes"
    )
