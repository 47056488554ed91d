"""Errors where containers are not available, and the arguments with which they are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.sandbox import container
from agents.sandbox.bubblewrap import SandboxLimits
from agents.sandbox.container import Containers
from servers.processes import supervised


def test_a_missing_runtime_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^containers: no-podman is not installed; "):
        Containers("no-podman", tmp_path).check()


def test_a_failing_runtime_is_reported_with_its_output(tmp_path: Path) -> None:
    broken = tmp_path / "docker"
    broken.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ValueError, match=r"not answer: Cannot connect to the Docker"):
        Containers(str(broken), tmp_path).check()


def test_limits_are_arguments_of_the_runtime(tmp_path: Path) -> None:
    limits = SandboxLimits(processes=64, memory_bytes=1000)
    args = " ".join(Containers("podman", tmp_path, limits).run_args("a"))
    assert "--pids-limit 64 --memory 1000 --memory-swap 1000 --network none" in args
    assert "--network" not in Containers("podman", tmp_path, network=True).run_args("a")


def test_the_label_of_a_run_does_not_depend_on_how_its_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = Containers("podman", tmp_path / "runs/cell").run_args("a")
    assert Containers("podman", Path("runs/cell")).run_args("a") == args
    assert Containers("podman", tmp_path / "runs/other").run_args("a") != args


def engine(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_disk_usage_is_measured_for_podman_installed_as_docker(tmp_path: Path) -> None:
    """The package podman-docker installs it so."""
    docker = engine(
        tmp_path / "docker",
        f'case "$*" in *.Store.GraphRoot*) echo {tmp_path};; *) exit 125;; esac',
    )
    watched = Containers(str(docker), tmp_path).disk_usage("a")
    assert watched is not None
    assert watched.exceeded_limit() is None


def test_disk_usage_is_measured_only_for_a_docker_on_this_machine(tmp_path: Path) -> None:
    answer = 'case "$*" in *.DockerRootDir*) echo {};; *) exit 1;; esac'
    docker = engine(tmp_path / "docker", answer.format(tmp_path))
    assert Containers(str(docker), tmp_path).disk_usage("a") is not None
    engine(docker, answer.format(tmp_path / "elsewhere"))
    assert Containers(str(docker), tmp_path).disk_usage("a") is None


def test_a_runtime_that_is_slow_to_remove_a_container_is_not_killed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the run ends before the process that removes them has begun to wait."""
    monkeypatch.setattr(supervised, "GRACE_S", 0.1)
    left, log = tmp_path / "container", tmp_path / "log"
    podman = engine(
        tmp_path / "podman",
        f'case "$*" in ps*) cat {left} 2>&-; exit 0;; esac; sleep 0.5; rm {left}',
    )
    containers = Containers(str(podman), tmp_path)
    monkeypatch.setattr(Containers, "remove", lambda _: None)  # only the process removes them
    with containers.cleaned_up(log):
        left.write_text("a1b2\n")
    assert not left.exists(), log.read_text()


@pytest.mark.parametrize("script", ["exit 125", "kill -9 $$", "echo 'a b\udcff'"])
def test_a_container_that_cannot_be_removed_fails_no_cell(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may remain after its program; at the end of the run all containers are removed."""
    monkeypatch.setattr(container, "REMOVE_TIMEOUT_S", 0)
    podman = tmp_path / "podman"
    podman.write_bytes(f"#!/bin/sh\n{script}\n".encode(errors="surrogateescape"))
    podman.chmod(0o755)
    Containers(str(podman), tmp_path).remove_program("a")


def test_a_container_that_remains_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "REMOVE_TIMEOUT_S", 0.2)
    script = 'case "$1" in ps) echo a1b2;; *) echo "Error: device is busy" >&2; exit 125;; esac'
    podman = engine(tmp_path / "podman", script)
    with pytest.raises(ValueError, match=r"\(Error: device is busy\); .* rm -f a1b2 …$"):
        Containers(str(podman), tmp_path).remove()
