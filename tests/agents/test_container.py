"""What is said where there are no containers, and with what arguments they are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.container import Containers
from agents.sandbox import Limits


def test_one_that_is_not_installed_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^containers: no-podman is not installed; get it with: "):
        Containers("no-podman", tmp_path).check()


def test_one_that_does_not_answer_is_told_with_what_it_said(tmp_path: Path) -> None:
    broken = tmp_path / "docker"
    broken.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ValueError, match=r"does not answer: Cannot connect to the Docker daemon$"):
        Containers(str(broken), tmp_path).check()


def test_limits_are_its_arguments(tmp_path: Path) -> None:
    limits = Limits(processes=64, memory_bytes=1000)
    args = " ".join(Containers("podman", tmp_path, limits).run_args())
    assert "--pids-limit 64 --memory 1000 --memory-swap 1000 --network none" in args
    assert "--network" not in Containers("podman", tmp_path, network=True).run_args()


def test_a_runs_label_is_its_folders_however_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = Containers("podman", tmp_path / "runs/cell").run_args()
    assert Containers("podman", Path("runs/cell")).run_args() == args
    assert Containers("podman", tmp_path / "runs/other").run_args() != args
