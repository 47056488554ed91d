"""A finished run in the working directory of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.in_process import bench

SWEEP = "sweep --jps 0.2 --policies fcfs,continuum --programs 10 --out run"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = bench(*SWEEP.split())
    assert code == 0, err
