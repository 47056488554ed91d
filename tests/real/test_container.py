"""Servers in containers, over the Docker API of podman: an image that holds nothing, into which the
test mounts this machine's own Python and vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.errors import ContainersUnavailable, ServerFailed
from servers.processes.supervisor import descendants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.find_vllm import find_vllm
from servers.vllm.launch.server import launch
from tests.real.podman import IMAGE, SYSTEM, needs_podman, podman_at
from tests.servers.stand_in import stand_in

pytestmark = needs_podman


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("podman")
    with podman_at(folder) as podman:
        url = f"unix://{folder}/podman.sock"
        serving = subprocess.Popen([podman, "system", "service", "--time=0", url])
        deadline_s = time.monotonic() + 30
        while not (folder / "podman.sock").exists():
            assert serving.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        yield url
        serving.terminate()
        serving.wait(30)


@pytest.fixture(autouse=True)
def reached(service: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import docker

    monkeypatch.setenv("DOCKER_HOST", service)
    yield
    client = docker.from_env()
    assert client.containers.list(all=True) == []
    client.close()


def wanted(*mounts: Path) -> ServerConfig:
    own = Path(sys.base_prefix), Path(sys.prefix)
    return ServerConfig(image=IMAGE, mounts=(*SYSTEM, *own, *mounts), kv_blocks=100)


def test_a_server_in_a_container_is_healthy_and_leaves_nothing(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "healthy")
    with launch(wanted(tmp_path), tmp_path / "run", python=python, ready_within_s=60) as server:
        assert server.info.version == "0.32.0"
        assert server.failure() is None


def test_a_container_that_dies_is_reported_with_the_reason(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "exits")
    with pytest.raises(ServerFailed, match="exited with code 1: ValueError: the KV cache is too s"):
        launch(wanted(tmp_path), tmp_path / "run", python=python, ready_within_s=60)


def test_a_missing_image_is_reported_and_not_pulled(tmp_path: Path) -> None:
    with pytest.raises(
        ContainersUnavailable, match="get it with: docker pull vllm/vllm-openai:nowhere"
    ):
        launch(ServerConfig(image="vllm/vllm-openai:nowhere"), tmp_path, ready_within_s=60)


def test_no_container_outlives_a_bench_that_was_killed(tmp_path: Path) -> None:
    import docker

    python = stand_in(tmp_path, "healthy")
    bench = str(Path(sys.executable).parent / "bench")
    mounts = [f"--mount={path}" for path in wanted(tmp_path).mounts]
    options = ["--image", IMAGE, "--vllm-python", python, "--out", str(tmp_path / "run"), *mounts]
    with subprocess.Popen([bench, "serve", *options], stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("http://127.0.0.1:")
        serving.send_signal(signal.SIGKILL)
    client = docker.from_env()
    deadline_s = time.monotonic() + 30
    while client.containers.list(all=True):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    client.close()


def test_the_process_that_stands_for_it_killed_its_container_goes_with_the_server(
    tmp_path: Path,
) -> None:
    import docker

    python = stand_in(tmp_path, "healthy")
    client = docker.from_env()
    with launch(wanted(tmp_path), tmp_path / "run", python=python, ready_within_s=60) as server:
        (stands_for_it,) = descendants(server.pid)
        os.kill(stands_for_it, signal.SIGKILL)
        server.wait(20)
        assert "was ended by signal 9" in str(server.failure())
        assert len(client.containers.list()) == 1
    assert client.containers.list(all=True) == []
    client.close()


def test_the_shared_memory_of_a_killed_server_goes_with_its_container(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "sharing")
    with launch(wanted(tmp_path), tmp_path / "run", python=python, ready_within_s=60):
        pass
    assert tmp_path.name not in os.listdir("/dev/shm")  # noqa: S108


def test_a_real_vllm_serves_from_a_container(tmp_path: Path) -> None:
    python = Path(find_vllm().python)
    environment = python.parents[1]
    with launch(wanted(environment), tmp_path, python=str(python), ready_within_s=300) as server:
        assert (server.info.model, server.info.kv_blocks) == ("tiny", 100)
