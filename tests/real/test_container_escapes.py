"""Known ways to escape from a container, each tried from inside as its root
(docs/design/security.md)."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.sandbox.container import LABEL, Containers
from tests.real.podman import needs_podman, podman_at
from tests.real.test_agent_container import LIMITS, bash, output_of, start

pytestmark = needs_podman
CALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *words):
    done = getattr(libc, name)(*words)
    print("done" if done >= 0 else errno.errorcode[ctypes.get_errno()])
"""


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    with podman_at(tmp_path_factory.mktemp("podman")) as podman:
        folder = tmp_path_factory.mktemp("run")
        yield Containers(str(podman), folder, LIMITS)


@pytest.fixture(scope="module")
def container(containers: Containers) -> Iterator[str]:
    with containers.cleaned_up(containers.folder / "log"):
        yield start(containers)


@pytest.fixture
def shell(containers: Containers, container: str) -> Shell:
    return Shell(containers, container)


class Shell:
    def __init__(self, containers: Containers, container: str) -> None:
        self._container = containers, container

    def run(self, script: str) -> str:
        return bash(*self._container, f"{script}\ntrue")

    def python(self, script: str) -> str:
        return self.run(f"python3 - <<'END'\n{script}\nEND")


def test_files_of_the_host_are_not_visible(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush")
    paths = ("", "/proc/1/root", "/proc/self/cwd/../../../..")
    output = shell.run("; ".join(f"cat {path}{tmp_path}/secret" for path in paths))
    assert output.count("No such file or directory") == 3
    assert "Read-only" in shell.run("touch /usr/planted")


def test_a_container_cannot_signal_or_trace_processes_of_the_host(shell: Shell) -> None:
    with subprocess.Popen(["sleep", "600"]) as outside:
        try:
            pid = outside.pid
            output = shell.python(
                CALL + f"call('kill', {pid}, 9)\ncall('ptrace', 16, {pid}, 0, 0)\n"
                f"call('syscall', 434, {pid}, 0)"  # pidfd_open
            )
            assert outside.poll() is None
        finally:
            outside.kill()
    assert "done" not in output
    assert output.split()[0] == "ESRCH"


def test_a_container_cannot_connect_to_anything_outside(shell: Shell) -> None:
    name = f"turnstile-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as port:
        server.bind(f"\0{name}")
        server.listen()
        to = [("192.0.2.1", 53), ("169.254.169.254", 80), port.getsockname()]
        output = shell.python(
            "import socket\n"
            f"for at in {to}:\n"
            "    try: socket.create_connection(at, 5); print('reached', at)\n"
            "    except OSError: print('refused')\n"
            f"try: socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('reached')\n"
            "except OSError: print('refused')"
        )
    assert output.split() == ["refused"] * 4


def test_root_in_a_container_has_no_rights_over_the_kernel(shell: Shell) -> None:
    output = shell.python(
        CALL + "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)\n"
        "call('syscall', 321, 0, 0, 0)\n"  # bpf
        "call('swapoff', b'/dev/sda')\n"
        "call('mknod', b'/tmp/disk', 0o60600, 8 << 8)\n"
        "call('socket', 2, 3, 1)"  # raw
    )
    assert "done" not in output
    assert len(output.split()) == 5


def test_the_hosts_settings_in_proc_are_read_only_and_its_disks_are_not_visible(
    shell: Shell,
) -> None:
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
        assert "written" not in shell.run(f"echo x > {path} && echo written")
    devices = set(shell.run("ls /dev").split())
    assert not devices & {"sda", "vda", "nvme0n1", "mem", "kmsg", "kvm", "fuse", "loop0", "vsock"}


def test_sockets_of_container_services_are_not_visible(shell: Shell) -> None:
    assert shell.run("find / -xdev -type s 2>/dev/null; env | grep _HOST=") == ""


def test_the_disk_usage_of_a_program_is_counted_and_removed_with_its_container(
    containers: Containers,
) -> None:
    other = Containers(containers.executable, containers.folder / "other", LIMITS)
    try:
        first, _ = start(other, "first"), start(other, "second")
        files = replace(other, limits=replace(LIMITS, disk_bytes=30 << 20)).disk_usage("first")
        assert files is not None
        assert files.exceeded_limit() is None
        bash(other, first, "head -c 40M /dev/urandom > /big && sync")
        assert files.exceeded_limit() == "0.0292969 GiB of files"
        other.remove_program("first")
        assert (
            len(output_of(other, "ps", "-q", "--filter", f"label={LABEL}={other.run}").split()) == 1
        )
    finally:
        other.remove()
