"""A finished run in the working directory of a test, and workers that start fast."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import pytest

from tests.harness.in_process import bench

SPAWN = multiprocessing.get_context("spawn")
SWEEP = "sweep --once --jps 0.2 --policies fcfs,continuum --programs 10 --out run"


@pytest.fixture(scope="module", autouse=True)
def _forked_workers(forked_workers: None) -> None:
    pass


@pytest.fixture
def spawned_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the worker processes themselves, which start as those of `bench` do."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _kind=None: SPAWN)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, _, err = bench(*SWEEP.split())
    assert code == 0, err
    return folder / "run"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, "run")
