"""A podman that works in nested containers, and an empty image into which tests mount folders of
this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

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
    """Yield a podman executable that keeps its images and containers in the folder."""
    with TemporaryDirectory() as runroot:  # podman takes no longer path than 50 characters
        try:
            yield _set_up(folder, runroot)
        finally:
            # A killed podman leaves a container's shm mounted, which blocks removing its folder.
            for line in Path("/proc/self/mounts").read_text().splitlines():
                if (mount := line.split()[1]).startswith((f"{folder}/", f"{runroot}/")):
                    subprocess.run(["umount", mount], check=False)


def _set_up(folder: Path, runroot: str) -> Path:
    conf, podman = folder / "containers.conf", folder / "podman"
    conf.write_text(CONF)
    storage = f"--root {folder}/root --runroot {runroot} --storage-driver vfs"
    podman.write_text(
        # After running out of memory its monitor writes a file `oom` into its working directory.
        f"#!/bin/sh\ncd {folder} || exit 1\n"
        f'CONTAINERS_CONF={conf} exec {shutil.which("podman")} {storage} "$@"\n'
    )
    podman.chmod(0o755)
    (folder / "rootfs/tmp").mkdir(parents=True)
    subprocess.run(["tar", "-cf", folder / "rootfs.tar", "-C", folder / "rootfs", "."], check=True)
    subprocess.run([podman, "import", "-q", folder / "rootfs.tar", IMAGE], check=True)
    return podman
