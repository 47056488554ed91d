"""A podman that works where containers are nested, and an image that holds nothing: this machine's
own folders are mounted into it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_podman = pytest.mark.skipif(
    shutil.which("podman") is None or shutil.which("runc") is None or os.geteuid() != 0,
    reason="needs podman and runc, as root",
)
CONF = """
[containers]
default_ulimits = ["nofile=10000:10000", "nproc=10000:10000"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
IMAGE = "localhost/turnstile-empty:1"
SYSTEM = [Path(path) for path in ("/usr", "/lib", "/lib64", "/bin", "/etc")]


@contextmanager
def podman_at(folder: Path) -> Iterator[Path]:
    """An executable whose images and containers are in the folder."""
    try:
        yield _made(folder)
    finally:
        # A podman that was killed leaves a container's shm mounted, and its folder cannot go.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if (place := line.split()[1]).startswith(f"{folder}/"):
                subprocess.run(["umount", place], check=False)


def _made(folder: Path) -> Path:
    conf, podman = folder / "containers.conf", folder / "podman"
    conf.write_text(CONF)
    storage = f"--root {folder}/root --runroot {folder}/run --storage-driver vfs"
    podman.write_text(
        # Where it stands its monitor leaves a file `oom` when memory was out.
        f"#!/bin/sh\ncd {folder} || exit 1\n"
        f'CONTAINERS_CONF={conf} exec {shutil.which("podman")} {storage} "$@"\n'
    )
    podman.chmod(0o755)
    (folder / "rootfs/tmp").mkdir(parents=True)
    subprocess.run(["tar", "-cf", folder / "rootfs.tar", "-C", folder / "rootfs", "."], check=True)
    subprocess.run([podman, "import", "-q", folder / "rootfs.tar", IMAGE], check=True)
    return podman
