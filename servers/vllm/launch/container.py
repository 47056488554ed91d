"""vLLM in a container, over the Docker API (Docker or podman): `--image vllm/vllm-openai:…`.

`container_command` writes what to run into the cell's folder and gives the command of a process
that stands for the container: its output is the container's log, its exit code the container's,
and when it is told to end, or its keeper goes, the container is stopped and removed. So everything
that holds for a server process holds for a container. The network is the host's, since the server
binds to loopback. As a script it needs the `docker` package and the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from servers.errors import ContainersUnavailable

STOP_WITHIN_S = 5
"""Between SIGTERM and SIGKILL; less than what a keeper waits."""
INSIDE = ("TURNSTILE_", "VLLM_", "HF_", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "LMCACHE_")
"""Variables that a container is given; the others are the host's own affair."""
SHM_BYTES = 16 << 30
"""At most: vLLM's processes hand one another pictures and, with several GPUs, tensors there."""
IN_FOLDER = "turnstile.folder"
"""Label by which a container is found when the process that stands for it was killed."""
FAILED = 125
"""Exit code of `docker run` where the container could not be started."""


def check_image(image: str) -> None:
    """Nothing is pulled behind the user's back: images of vLLM have ten gigabytes."""
    try:
        import docker
    except ImportError:
        raise ContainersUnavailable(
            "--image: the docker package is missing; get it with: pip install docker"
        ) from None
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException:
        raise ContainersUnavailable(
            "--image: no Docker API answers; start Docker, or podman system service --time=0, and "
            "set DOCKER_HOST=unix://… where it is"
        ) from None
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        raise ContainersUnavailable(
            f"--image {image}: not here; get it with: docker pull {image}"
        ) from None
    finally:
        client.close()


def container_command(
    image: str,
    command: Sequence[str],
    env: Mapping[str, str],
    mounts: Sequence[tuple[Path, str]],
    folder: Path,
    *,
    gpus: bool,
) -> list[str]:
    """`mounts`: host paths, found at the same place inside, each "ro" or "rw". The command is to be
    run with `env`, of which the folder gets the names alone: HF_TOKEN is one."""
    job = {
        "folder": str(folder),
        "image": image,
        "command": list(command),
        "env": [name for name in env if name.startswith(INSIDE)],
        "mounts": {str(path): {"bind": str(path), "mode": mode} for path, mode in mounts},
        "gpus": gpus,
    }
    path = folder / "container.json"
    path.write_text(json.dumps(job, indent=1) + "\n")
    # -P: not this folder on the path, whose modules have names of the standard library.
    return [sys.executable, "-P", __file__, str(path)]


def remove_left(folder: Path) -> None:
    """The container of a server in this folder, should its process have been killed."""
    import docker

    with suppress(docker.errors.DockerException):
        client = docker.from_env()
        try:
            _remove_left(client, str(folder))
        finally:
            client.close()


def _remove_left(client: Any, folder: str) -> None:
    for left in client.containers.list(all=True, filters={"label": f"{IN_FOLDER}={folder}"}):
        left.remove(force=True)


def run(job: Mapping[str, Any]) -> int:
    import docker

    gpus = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
    client = docker.from_env()
    container = None
    try:
        _remove_left(client, job["folder"])
        container = client.containers.create(
            job["image"],
            entrypoint=job["command"][:1],
            command=job["command"][1:],
            environment={name: os.environ[name] for name in job["env"]},
            volumes=job["mounts"],
            network_mode="host",
            # Its own, so that what a killed server kept in shared memory goes with the container.
            ipc_mode="private",
            shm_size=SHM_BYTES,
            init=True,
            labels={"turnstile": "server", IN_FOLDER: job["folder"]},
            device_requests=gpus if job["gpus"] else None,
        )
        container.start()
        for piece in container.logs(stream=True, follow=True):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        return int(container.wait()["StatusCode"])
    except docker.errors.APIError as error:
        print(f"container error: {error.explanation or error}", flush=True)
        return FAILED
    finally:
        if container is not None:
            with suppress(docker.errors.APIError):
                container.stop(timeout=STOP_WITHIN_S)
            with suppress(docker.errors.APIError):
                container.remove(force=True)
        client.close()


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(run(json.loads(Path(sys.argv[1]).read_text())))
