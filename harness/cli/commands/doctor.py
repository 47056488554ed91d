"""`bench doctor`: checks whether this machine is set up, and what it can run.

An optional component that is absent passes, and the finding gives the command that installs it. A
component that is installed but cannot be used fails, with a remedy.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from harness.installation import PACKAGES, Check, cpu_cores, package

if TYPE_CHECKING:
    from servers.vllm.launch.find_vllm import VllmInstallation

SOCKET_WITHIN_S = 2.0


def checks() -> list[Check]:
    return [
        _python(),
        *(package(name) for name in PACKAGES),
        _distribution(),
        *_machine(),
        Check("engine sim", True, "virtual time runs anywhere: bench sweep"),
        *_vllm(),
        *_containers(),
        _sandbox(),
    ]


def _python() -> Check:
    return Check(
        "python",
        sys.version_info >= (3, 11),
        f"{platform.python_version()} at {sys.executable}",
        "Turnstile needs 3.11 or newer",
    )


def _distribution() -> Check:
    try:
        return Check("turnstile-bench", True, metadata.version("turnstile-bench"))
    except metadata.PackageNotFoundError:
        return Check("turnstile-bench", False, "not installed", "make install")


def _machine() -> list[Check]:
    cores = cpu_cores()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        Check("cores", True, f"{cores}, the default number of workers"),
        Check(
            "memory",
            memory_gib >= 0.5 * cores,
            f"{memory_gib:.1f} GiB",
            "too little for one worker per core: use fewer --workers",
        ),
    ]


def _vllm() -> list[Check]:
    """A missing vLLM passes, since virtual time needs none. One that cannot be used fails."""
    from servers.errors import VllmNotInstalled, VllmUnavailable
    from servers.vllm.launch.find_vllm import find_vllm, gpu_names, install_hint

    gpus = gpu_names()
    found = [Check("GPUs", True, ", ".join(gpus) or "none found by the NVIDIA driver")]
    try:
        vllm = find_vllm()
    except VllmNotInstalled:
        return [*found, Check("engine vllm", True, f"absent, not needed for sim; {install_hint()}")]
    except VllmUnavailable as missing:
        return [*found, Check("engine vllm", False, "cannot be used", str(missing))]
    finding = f"{vllm.version} for {'CPUs' if vllm.cpu else 'GPUs'} at {vllm.python}"
    usable = vllm.cpu or bool(gpus) or Path("/dev/kfd").exists()
    remedy = f"no GPU found; {install_hint()}"
    return [*found, Check("engine vllm", usable, finding, remedy), _lmcache(vllm)]


def _lmcache(vllm: VllmInstallation) -> Check:
    """LMCache in vLLM's environment. vLLM's own offloading needs no package."""
    get = f"install it with: {vllm.python} -m pip install lmcache" + (
        " (for CPUs: make vllm)" if vllm.cpu else ""
    )
    absent = f"absent, needed only for policies with LMCache (continuum+, …); {get}"
    return Check("LMCache", True, vllm.lmcache or absent)


def _containers() -> list[Check]:
    """Servers in containers need the `docker` package and a service of Docker or podman."""
    installed = importlib.util.find_spec("docker") is not None
    responding = next(filter(_responds, _container_sockets()), None)
    return [
        Check(
            "docker package",
            True,
            metadata.version("docker")
            if installed
            else "absent, needed only for containers; install it "
            f"with: {sys.executable} -m pip install docker",
        ),
        Check(
            "containers",
            True,
            responding
            or "no service of Docker or podman responds, needed only for containers; start one "
            "with: podman system service --time=0 (or set DOCKER_HOST=unix://PATH)",
        ),
    ]


def _sandbox() -> Check:
    """Tries the sandbox in which live agents run their commands."""
    from agents.sandbox.bubblewrap import Bubblewrap

    if shutil.which("bwrap") is None:
        get = "install it with: apt-get install bubblewrap"
        return Check("bubblewrap", True, f"absent, needed only for live agents; {get}")
    try:
        Bubblewrap().check()
    except ValueError as error:
        return Check("bubblewrap", False, "cannot be used", str(error))
    return Check("bubblewrap", True, "live agents can run in a sandbox")


def _container_sockets() -> list[str]:
    """URLs of the sockets, in the order in which they are tried."""
    named = os.environ.get("DOCKER_HOST")
    if named is not None:
        return [named]
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    paths = ("/var/run/docker.sock", f"{runtime}/podman/podman.sock", "/run/podman/podman.sock")
    return [f"unix://{path}" for path in paths]


def _responds(url: str) -> bool:
    kind, _, where = url.partition("://")
    with suppress(OSError, ValueError):
        if kind == "unix":
            at: tuple[str, int] | str = where
            family = socket.AF_UNIX
        else:
            host, _, port = where.rstrip("/").rpartition(":")
            at, family = (host, int(port)), socket.AF_INET
        with closing(socket.socket(family)) as service:
            service.settimeout(SOCKET_WITHIN_S)
            service.connect(at)
            service.sendall(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return b" 200 " in service.recv(64)
    return False
