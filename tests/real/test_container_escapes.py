"""Ways out of a container that are known, each tried from inside, as its root
(docs/design/sandbox.md)."""

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
from tests.real.test_agent_container import LIMITS, bash, said_by, start

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
def said(containers: Containers, container: str) -> Said:
    return Said(containers, container)


class Said:
    def __init__(self, containers: Containers, container: str) -> None:
        self._at = containers, container

    def by(self, script: str) -> str:
        return bash(*self._at, f"{script}\ntrue")

    def by_python(self, script: str) -> str:
        return self.by(f"python3 - <<'END'\n{script}\nEND")


def test_files_of_the_host_are_not_there(said: Said, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush")
    roads = ("", "/proc/1/root", "/proc/self/cwd/../../../..")
    found = said.by("; ".join(f"cat {road}{tmp_path}/secret" for road in roads))
    assert found.count("No such file or directory") == 3
    assert "Read-only" in said.by("touch /usr/planted")


def test_no_process_of_the_host_is_signalled_or_traced(said: Said) -> None:
    with subprocess.Popen(["sleep", "600"]) as outside:
        try:
            pid = outside.pid
            tried = said.by_python(
                CALL + f"call('kill', {pid}, 9)\ncall('ptrace', 16, {pid}, 0, 0)\n"
                f"call('syscall', 434, {pid}, 0)"  # pidfd_open
            )
            assert outside.poll() is None
        finally:
            outside.kill()
    assert "done" not in tried
    assert tried.split()[0] == "ESRCH"


def test_nothing_is_sent_out_of_it(said: Said) -> None:
    name = f"turnstile-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as port:
        server.bind(f"\0{name}")
        server.listen()
        to = [("192.0.2.1", 53), ("169.254.169.254", 80), port.getsockname()]
        tried = said.by_python(
            "import socket\n"
            f"for at in {to}:\n"
            "    try: socket.create_connection(at, 5); print('reached', at)\n"
            "    except OSError: print('refused')\n"
            f"try: socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('reached')\n"
            "except OSError: print('refused')"
        )
    assert tried.split() == ["refused"] * 4


def test_its_root_has_no_rights_over_the_kernel(said: Said) -> None:
    tried = said.by_python(
        CALL + "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)\n"
        "call('syscall', 321, 0, 0, 0)\n"  # bpf
        "call('swapoff', b'/dev/sda')\n"
        "call('mknod', b'/tmp/disk', 0o60600, 8 << 8)\n"
        "call('socket', 2, 3, 1)"  # raw
    )
    assert "done" not in tried
    assert len(tried.split()) == 5


def test_what_is_the_hosts_in_proc_is_not_written_and_no_disk_is_there(said: Said) -> None:
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
        assert "written" not in said.by(f"echo x > {path} && echo written")
    devices = set(said.by("ls /dev").split())
    assert not devices & {"sda", "vda", "nvme0n1", "mem", "kmsg", "kvm", "fuse", "loop0", "vsock"}


def test_the_services_that_start_containers_are_not_there(said: Said) -> None:
    assert said.by("find / -xdev -type s 2>/dev/null; env | grep _HOST=") == ""


def test_what_a_program_writes_is_counted_and_goes_with_it_alone(containers: Containers) -> None:
    other = Containers(containers.executable, containers.folder / "other", LIMITS)
    try:
        one, _ = start(other, "one"), start(other, "two")
        files = replace(other, limits=replace(LIMITS, disk_bytes=30 << 20)).disk_usage("one")
        assert files is not None
        assert files.exceeded_limit() is None
        bash(other, one, "head -c 40M /dev/urandom > /big && sync")
        assert files.exceeded_limit() == "0.0292969 GiB of files"
        other.remove_program("one")
        assert (
            len(said_by(other, "ps", "-q", "--filter", f"label={LABEL}={other.run}").split()) == 1
        )
    finally:
        other.remove()
