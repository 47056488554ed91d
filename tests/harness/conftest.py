"""A finished run in the working directory of a test, and sweeps without worker processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.cells import workers
from tests.harness import worker_threads
from tests.harness.in_process import bench

SWEEP = "sweep --once --jps 0.2 --policies fcfs,continuum --programs 10 --out run"


@pytest.fixture(autouse=True)
def _worker_threads(request: pytest.FixtureRequest) -> None:
    if "worker_processes" not in request.fixturenames:
        request.getfixturevalue("worker_threads")


@pytest.fixture
def worker_processes() -> None:
    """For tests of the worker processes themselves, which other tests replace by threads."""


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(workers, "_start", worker_threads.start)
        code, _, err = bench(*SWEEP.split())
    assert code == 0, err
    return folder / "run"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, "run")
