"""`bench doctor`: check whether this machine is set up, and what it can run.

An optional component that is not installed passes; its finding has the command. One that is
installed but unusable fails, with a remedy.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from harness.installation import PACKAGES, InstallationCheck, check_package
from servers.basics.checkout import INSTALL, REINSTALL, make_or
from servers.basics.compiled_core import find_core
from servers.basics.cores import cpu_cores
from servers.basics.errors import NotInstalled, Unavailable

if TYPE_CHECKING:
    from servers.vllm.launch.find_vllm import VllmInstallation

SOCKET_TIMEOUT_S = 2.0
NOT_INSTALLED = "not installed"


def _absent(name: str, finding: str, state: str = NOT_INSTALLED) -> InstallationCheck:
    return InstallationCheck(name, True, finding, absent=state)


def checks() -> Iterator[InstallationCheck]:
    """Check one component after another. The last ones start processes."""
    yield _python()
    yield InstallationCheck("engine sim", True, "virtual time runs anywhere: bench sweep")
    yield from _machine()
    owners = metadata.packages_distributions()
    yield from (check_package(name, owners.get(name, ())) for name in PACKAGES)
    yield _distribution()
    yield _compiled_core()
    yield from _containers()
    yield _sandbox()
    yield from _vllm()
    yield from _sglang()
    yield from _foreign_routers()


def _python() -> InstallationCheck:
    return InstallationCheck(
        "python",
        sys.version_info >= (3, 11),
        f"{platform.python_version()} at {sys.executable}",
        "Turnstile needs Python 3.11 or newer",
    )


def _distribution() -> InstallationCheck:
    try:
        return InstallationCheck("turnstile-bench", True, metadata.version("turnstile-bench"))
    except metadata.PackageNotFoundError:
        return InstallationCheck(
            "turnstile-bench", False, "not installed", make_or("install", INSTALL)
        )


def _machine() -> list[InstallationCheck]:
    cores = cpu_cores()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        InstallationCheck("cores", True, f"{cores}, the default number of workers"),
        InstallationCheck(
            "memory",
            memory_gib >= 0.5 * cores,
            f"{memory_gib:.1f} GiB",
            "too little for one worker per core: use fewer --workers",
        ),
    ]


def _compiled_core() -> InstallationCheck:
    core = find_core()
    if core.finding == "absent":
        compile_it = make_or("compile", f"TURNSTILE_COMPILE=1 {REINSTALL}")
        finding = f"cells take four times as long; compile it with: {compile_it}"
        return _absent("compiled core", finding, "not compiled")
    return InstallationCheck(
        "compiled core", not core.is_outdated, core.finding, make_or("compile", REINSTALL)
    )


def _vllm() -> list[InstallationCheck]:
    """Check vLLM and the GPUs. A missing vLLM passes, because virtual time does not need it."""
    from servers.vllm.launch.find_vllm import find_vllm, gpu_names, install_hint

    gpus = gpu_names()
    gpu_check = _gpus(gpus)
    try:
        vllm = find_vllm()
    except NotInstalled:
        return [
            gpu_check,
            _absent("engine vllm", f"not needed for sim; {install_hint()}"),
        ]
    except Unavailable as error:
        return [gpu_check, InstallationCheck("engine vllm", False, "cannot be used", str(error))]
    finding = f"{vllm.version} for {'CPUs' if vllm.cpu else 'GPUs'} at {vllm.python}"
    usable = vllm.cpu or bool(gpus) or Path("/dev/kfd").exists()
    remedy = f"no GPU found; {install_hint()}"
    return [gpu_check, InstallationCheck("engine vllm", usable, finding, remedy), _lmcache(vllm)]


def _gpus(names: Sequence[str]) -> InstallationCheck:
    from servers.vllm.launch.command_line import listed_gpu

    unlisted = "not in bench list hardware; describe it in a file, see docs/howto/my-gpu.md"
    found = []
    for name, count in Counter(names).items():
        known = listed_gpu(name)
        option = unlisted if known is None else f"--hardware {known}"
        found.append((f"{count} x " if count > 1 else "") + f"{name} ({option})")
    if not found:
        return _absent("GPUs", "the NVIDIA driver finds none", "none")
    return InstallationCheck("GPUs", True, ", ".join(found))


def _lmcache(vllm: VllmInstallation) -> InstallationCheck:
    """Check for LMCache in vLLM's environment. vLLM's native offloading needs no package."""
    no_deps = " --no-deps lmcache sortedcontainers aiofiles" if vllm.cpu else " lmcache"
    install = f"install it with: {vllm.python} -m pip install{no_deps}"
    if vllm.lmcache:
        return InstallationCheck("LMCache", True, vllm.lmcache)
    return _absent("LMCache", f"needed only for policies with LMCache (continuum+, …); {install}")


def _sglang() -> list[InstallationCheck]:
    from servers.sglang.find_sglang import find_scheduler, find_sglang

    found = []
    for name, find in (("sglang", find_sglang), ("sglang-virtual", find_scheduler)):
        try:
            sglang = find()
        except NotInstalled as error:
            found.append(_absent(f"engine {name}", f"not needed for sim; {error}"))
        except Unavailable as error:
            found.append(InstallationCheck(f"engine {name}", False, "cannot be used", str(error)))
        else:
            finding = f"{sglang.version} at {sglang.python}"
            found.append(InstallationCheck(f"engine {name}", True, finding))
    return found


def _foreign_routers() -> list[InstallationCheck]:
    """Check for the routers of other projects, which only live sweeps with several servers need."""
    from servers.foreign_routers.installation import find_installation
    from servers.routing import FOREIGN

    found = []
    for project in FOREIGN:
        try:
            router = find_installation(project)
        except Unavailable as error:
            found.append(_absent(project, f"needed only for --router {project}:…; {error}"))
        else:
            found.append(InstallationCheck(project, True, f"{router.version} at {router.python}"))
    return found


def _containers() -> list[InstallationCheck]:
    """Check for the `docker` package and a Docker or podman service, which containers need."""
    installed = importlib.util.find_spec("docker") is not None
    responding = next(filter(_responds, _container_sockets()), None)
    install = f"install it with: {sys.executable} -m pip install docker"
    start = "start one with: podman system service --time=0 (or set DOCKER_HOST=unix://PATH)"
    return [
        InstallationCheck("docker package", True, metadata.version("docker"))
        if installed
        else _absent("docker package", f"needed only for containers; {install}"),
        InstallationCheck("containers", True, responding)
        if responding
        else _absent(
            "containers",
            f"no Docker or podman service responds, needed only for containers; {start}",
            "not running",
        ),
    ]


def _sandbox() -> InstallationCheck:
    from agents.sandbox.bubblewrap import Bubblewrap

    if shutil.which("bwrap") is None:
        return _absent(
            "bubblewrap",
            "needed only for live agents; install it with: apt-get install bubblewrap",
        )
    try:
        Bubblewrap().check()
    except ValueError as error:
        return InstallationCheck("bubblewrap", False, "cannot be used", str(error))
    return InstallationCheck("bubblewrap", True, "live agents can run in a sandbox")


def _container_sockets() -> list[str]:
    """Return the URLs of the sockets, in the order in which they are tried."""
    docker_host = os.environ.get("DOCKER_HOST")
    if docker_host is not None:
        return [docker_host]
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    paths = ("/var/run/docker.sock", f"{runtime}/podman/podman.sock", "/run/podman/podman.sock")
    return [f"unix://{path}" for path in paths]


def _responds(url: str) -> bool:
    scheme, _, location = url.partition("://")
    with suppress(OSError, ValueError):
        if scheme == "unix":
            address: tuple[str, int] | str = location
            family = socket.AF_UNIX
        else:
            host, _, port = location.rstrip("/").rpartition(":")
            address, family = (host, int(port)), socket.AF_INET
        with closing(socket.socket(family)) as service:
            service.settimeout(SOCKET_TIMEOUT_S)
            service.connect(address)
            service.sendall(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return b" 200 " in service.recv(64)
    return False
