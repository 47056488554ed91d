"""Runs vLLM in a container through the Docker API (Docker or podman): `--image vllm/vllm-openai:…`.

`container_command` writes a description to the cell's folder and returns the command of a process
that represents the container: it prints the container's log, exits with its exit code, and stops
and removes it on SIGTERM. So containers are supervised like server processes. A container shares
the host's network, since the server binds to loopback. Run as a script, this module imports only
the `docker` package and `servers.basics.errors`.
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

from servers.basics.errors import Unavailable
from servers.basics.json_object import JsonObject

STOP_TIMEOUT_S = 5
"""Time between SIGTERM and SIGKILL; less than the supervisor's."""
PASSED_VARIABLES = ("TURNSTILE_", "VLLM_", "HF_", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "LMCACHE_")
"""Prefixes of the environment variables that are passed to a container."""
SHM_BYTES = 16 << 30
"""Limit of the shared memory, through which vLLM's processes exchange images and tensors."""
FOLDER_LABEL = "turnstile.folder"
"""Label to find the container of a folder after the process that represents it was killed."""
NOT_STARTED = 125
"""Exit code if the container cannot be started, as of `docker run`."""


def check_image(image: str) -> None:
    """Raise Unavailable unless the image exists. vLLM's 10 GB images are not pulled."""
    try:
        import docker
    except ImportError:
        raise Unavailable(
            "--image: the docker package is not installed; get it with: pip install docker"
        ) from None
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException:
        raise Unavailable(
            "--image: no Docker API responds; start Docker, or podman system service --time=0, and "
            "set DOCKER_HOST=unix://… to its socket"
        ) from None
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        raise Unavailable(f"--image {image}: not found; get it with: docker pull {image}") from None
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
    """Return the command that represents the container. Run it with `env`.

    `mounts` are pairs of a path, the same on the host and in the container, and a mode, "ro" or
    "rw". Only the names of variables are written to the folder, since one may be a key (HF_TOKEN).
    """
    job = {
        "folder": str(folder),
        "image": image,
        "command": list(command),
        "env": [name for name in env if name.startswith(PASSED_VARIABLES)],
        "mounts": {str(path): {"bind": str(path), "mode": mode} for path, mode in mounts},
        "gpus": gpus,
    }
    path = folder / "container.json"
    path.write_text(json.dumps(job, indent=1) + "\n")
    # -P keeps this folder off sys.path, so that its modules cannot shadow other packages.
    return [sys.executable, "-P", __file__, str(path)]


def remove_leftover(folder: Path) -> None:
    """Remove the container of the server in this folder, if its process was killed."""
    import docker

    with suppress(docker.errors.DockerException):
        client = docker.from_env()
        try:
            _remove_leftover(client, str(folder))
        finally:
            client.close()


def _remove_leftover(client: Any, folder: str) -> None:
    label = {"label": f"{FOLDER_LABEL}={folder}"}
    for container in client.containers.list(all=True, filters=label):
        container.remove(force=True)


def run(job: JsonObject) -> int:
    import docker

    gpus = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
    client = docker.from_env()
    container = None
    try:
        _remove_leftover(client, job["folder"])
        container = client.containers.create(
            job["image"],
            entrypoint=job["command"][:1],
            command=job["command"][1:],
            environment={name: os.environ[name] for name in job["env"]},
            volumes=job["mounts"],
            network_mode="host",
            # Shared memory in a private namespace is freed with the container of a killed server.
            ipc_mode="private",
            shm_size=SHM_BYTES,
            init=True,
            labels={"turnstile": "server", FOLDER_LABEL: job["folder"]},
            device_requests=gpus if job["gpus"] else None,
        )
        container.start()
        for chunk in container.logs(stream=True, follow=True):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return int(container.wait()["StatusCode"])
    except docker.errors.APIError as error:
        print(f"container error: {error.explanation or error}", flush=True)
        return NOT_STARTED
    finally:
        if container is not None:
            with suppress(docker.errors.APIError):
                container.stop(timeout=STOP_TIMEOUT_S)
            with suppress(docker.errors.APIError):
                container.remove(force=True)
        client.close()


def _exit(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit)
    sys.exit(run(json.loads(Path(sys.argv[1]).read_text())))
