"""`bench doctor`: is this machine set up, and what to do where it is not."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("harness", "reports", "servers", "traces")


class Check(NamedTuple):
    name: str
    good: bool
    finding: str
    remedy: str = ""


def checks() -> list[Check]:
    return [
        _python(),
        *(package(name) for name in PACKAGES),
        _distribution(),
        *_machine(),
        *_vllm(),
    ]


def _python() -> Check:
    return Check(
        "python",
        sys.version_info >= (3, 11),
        f"{platform.python_version()} at {sys.executable}",
        "Turnstile needs 3.11 or newer",
    )


def package(name: str) -> Check:
    """Our import names are common words; another distribution or folder may come first."""
    ours = Path(__file__).resolve().parent.parent / name
    spec = importlib.util.find_spec(name)
    origin = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    return Check(
        f"package {name}",
        origin == ours,
        str(origin or "not found"),
        f"expected {ours}: another `{name}` comes first on the path; run in the .venv that "
        "`make install` makes, from another folder, and without PYTHONPATH",
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
        Check("cores", True, f"{cores}: as many workers by default"),
        Check(
            "memory",
            memory_gib >= 0.5 * cores,
            f"{memory_gib:.1f} GiB",
            "little for a worker per core: use fewer --workers",
        ),
    ]


def _vllm() -> list[Check]:
    """Missing is fine, since virtual time needs none; one that cannot be used is not."""
    from servers.vllm.installed import NotInstalled, VllmMissing, find_vllm, gpu_names, how_to_get

    gpus = gpu_names()
    found = [Check("GPUs", True, ", ".join(gpus) or "none that an NVIDIA driver knows")]
    try:
        vllm = find_vllm()
    except NotInstalled:
        return [*found, Check("vLLM", True, f"absent, sim needs none; {how_to_get()}")]
    except VllmMissing as missing:
        return [*found, Check("vLLM", False, "cannot be used", str(missing))]
    finding = f"{vllm.version} for {'CPUs' if vllm.cpu else 'GPUs'} at {vllm.python}"
    usable = vllm.cpu or bool(gpus) or Path("/dev/kfd").exists()
    return [*found, Check("vLLM", usable, finding, f"no GPU is here; {how_to_get()}")]


def cpu_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
