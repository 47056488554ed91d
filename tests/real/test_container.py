"""Servers in containers, over the Docker API of podman: an empty image, into which the tests mount
this machine's Python and vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.basics.errors import ServerFailed, Unavailable
from servers.processes.supervisor import descendants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.find_vllm import find_vllm
from servers.vllm.launch.server import launch
from tests.processes import wait_until, wait_until_none
from tests.real.conftest import FORKED, forked
from tests.real.podman import IMAGE, SYSTEM, needs_podman, podman_at
from tests.servers.substitute_vllm import substitute_vllm

pytestmark = needs_podman


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("podman")
    with podman_at(folder) as podman:
        url = f"unix://{folder}/podman.sock"
        serving = subprocess.Popen([podman, "system", "service", "--time=0", url])
        wait_until((folder / "podman.sock").exists, process=serving)
        yield url
        serving.terminate()
        serving.wait(300)


@pytest.fixture(autouse=True)
def docker_host(service: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import docker

    monkeypatch.setenv("DOCKER_HOST", service)
    yield
    client = docker.from_env()
    assert client.containers.list(all=True) == []
    client.close()


def config(*mounts: Path) -> ServerConfig:
    own = Path(sys.base_prefix), Path(sys.prefix)
    return ServerConfig(image=IMAGE, mounts=(*SYSTEM, *own, *mounts), kv_blocks=100)


def test_a_server_in_a_container_becomes_healthy_and_leaves_no_container(tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    with launch(config(tmp_path), tmp_path / "run", python=python, ready_within_s=300) as server:
        assert server.info.version == "0.32.0"
        assert server.failure() is None


def test_a_container_that_dies_is_reported_with_the_reason(tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "exits")
    with pytest.raises(ServerFailed, match="code 1: ValueError: the KV cache"):
        launch(config(tmp_path), tmp_path / "run", python=python, ready_within_s=300)


def test_a_missing_image_is_reported_and_not_pulled(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="get it with: docker pull vllm/vllm-openai:nowhere"):
        launch(ServerConfig(image="vllm/vllm-openai:nowhere"), tmp_path, ready_within_s=300)


def test_no_container_outlives_a_bench_that_was_killed(tmp_path: Path) -> None:
    import docker

    python = substitute_vllm(tmp_path, "healthy")
    bench = str(Path(sys.executable).parent / "bench")
    mounts = [f"--mount={path}" for path in config(tmp_path).mounts]
    options = ["--image", IMAGE, "--vllm-python", python, "--out", str(tmp_path / "run"), *mounts]
    with subprocess.Popen([bench, "serve", *options], stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("http://127.0.0.1:")
        serving.send_signal(signal.SIGKILL)
    client = docker.from_env()
    wait_until_none(lambda: client.containers.list(all=True))
    client.close()


def test_if_its_client_process_is_killed_the_container_is_removed_with_the_server(
    tmp_path: Path,
) -> None:
    import docker

    python = substitute_vllm(tmp_path, "healthy")
    client = docker.from_env()
    with launch(config(tmp_path), tmp_path / "run", python=python, ready_within_s=300) as server:
        (container_client,) = descendants(server.pid)
        os.kill(container_client, signal.SIGKILL)
        server.wait(300)
        assert "was ended by signal 9" in str(server.failure())
        assert len(client.containers.list()) == 1
    assert client.containers.list(all=True) == []
    client.close()


def test_the_shared_memory_of_a_killed_server_is_removed_with_its_container(tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "sharing")
    with launch(config(tmp_path), tmp_path / "run", python=python, ready_within_s=300):
        pass
    assert tmp_path.name not in os.listdir("/dev/shm")  # noqa: S108


def test_vllm_serves_from_a_container(tmp_path: Path) -> None:
    python = Path(find_vllm().python)
    mounted = config(python.parents[1], FORKED)
    with forked(), launch(mounted, tmp_path, python=str(python), ready_within_s=300) as server:
        assert (server.info.model, server.info.kv_blocks) == ("tiny", 100)
