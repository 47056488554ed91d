"""Known ways to escape from a sandbox, each tried from inside (docs/design/security.md)."""

from __future__ import annotations

import fcntl
import os
import pty
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.sandbox.system_calls import PROCESSORS, filter_for, filter_for_this_machine
from tests.agents.sandbox.conftest import Boxed

CALL = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *words):
    done = getattr(libc, name)(*words)
    print("done" if done >= 0 else errno.errorcode[ctypes.get_errno()])
"""
"""Each call of libc prints its result."""
CALLS = ("clone", "clone3", "setns", "keyctl", "add_key", "bpf")
NUMBERS = {
    "x86_64": dict(zip(CALLS, (56, 435, 308, 250, 248, 321), strict=True)),
    "aarch64": dict(zip(CALLS, (220, 435, 268, 219, 217, 280), strict=True)),
}
SEARCH = r"find / \( -path /proc -o -path /sys -o -path /usr -o -name lib \) -prune -o"
"""Without installed software, among which a search takes seconds."""
known_processor = pytest.mark.skipif(
    not filter_for_this_machine(), reason="no filter for this processor"
)


def python(boxed: Boxed, script: str) -> str:
    ran = boxed.run("python3", "-c", script)
    assert ran.stderr == ""
    return ran.stdout


@contextmanager
def sleeper(boxed: Boxed) -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], user=boxed.uid, group=boxed.uid) as outside:
        try:
            yield outside.pid
            assert outside.poll() is None
        finally:
            outside.kill()


@pytest.mark.parametrize("path", ["/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../.."])
def test_paths_through_proc_lead_to_the_sandboxs_own_root(boxed: Boxed, path: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as outside:
        outside.kill()
        output = boxed.sh(f"cat {path}/etc/shadow; echo planted > {path}/etc/planted")
    assert "root:" not in output
    assert not Path("/etc/planted").exists()


def test_a_link_in_the_workspace_cannot_lead_outside(boxed: Boxed, shared: Path) -> None:
    (shared / "secret").write_text("hush")
    output = boxed.sh(f"ln -s {shared}/secret out; cat out; ln -s / up; cat up{shared}/secret")
    assert "hush" not in output
    assert output.count("No such file") == 2


def test_a_sandbox_cannot_see_the_workspace_of_another(boxed: Boxed, shared: Path) -> None:
    other = shared / "other"
    other.mkdir(mode=0o777)
    (other / "answer").write_text("hush")
    output = boxed.sh(f"ls {shared} {other}; {SEARCH} -name answer -print 2>/dev/null")
    assert "answer" not in output
    assert boxed.sh(f"echo mine > {other}/answer").rstrip().endswith("No such file or directory")


def test_a_sandbox_cannot_signal_or_trace_processes_of_the_host(boxed: Boxed) -> None:
    """That includes bubblewrap, the first process inside, if it belongs to another user (root)."""
    with sleeper(boxed) as pid:
        output = python(
            boxed,
            CALL + f"call('kill', {pid}, 9)\n"
            f"call('ptrace', 16, {pid}, 0, 0)\n"
            f"call('syscall', 434, {pid}, 0)\n"  # pidfd_open
            f"try: open('/proc/{pid}/mem')\n"
            "except OSError as error: print(errno.errorcode[error.errno])",
        )
    assert output.split() == ["ESRCH", "ESRCH", "ESRCH", "ENOENT"]


def test_abstract_sockets_of_the_host_are_not_reachable(boxed: Boxed) -> None:
    """They belong to a network namespace; X11, D-Bus and formerly containerd use them."""
    name = f"turnstile-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        output = python(
            boxed,
            "import socket\n"
            f"try: socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('reached')\n"
            "except OSError as error: print(error.strerror)",
        )
    assert output == "Connection refused\n"


def test_a_sandbox_cannot_send_anything_outside(boxed: Boxed) -> None:
    addresses = ["192.0.2.1", "127.0.0.1", "169.254.169.254", "2001:db8::1"]
    output = python(
        boxed,
        "import socket\n"
        f"for address in {addresses}:\n"
        "    family = socket.AF_INET6 if ':' in address else socket.AF_INET\n"
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):\n"
        "        try:\n"
        "            sender = socket.socket(family, kind)\n"
        "            sender.settimeout(5); sender.connect((address, 53)); sender.send(b'out')\n"
        "            print('sent to', address, kind.name)\n"
        "        except OSError: pass",
    )
    assert output == "sent to 127.0.0.1 SOCK_DGRAM\n", "its own loopback, where nothing listens"


@known_processor
def test_only_socket_families_of_the_network_namespace_are_available(boxed: Boxed) -> None:
    script = (
        "import socket\n"
        "for family in range(1, 46):\n"
        "    for kind in (1, 2, 3, 5):\n"
        "        try: socket.socket(family, kind); print(family); break\n"
        "        except OSError: pass"
    )
    assert set(python(boxed, script).split()) == {"1", "2", "10", "16"}, "unix, IPv4, IPv6, netlink"


@known_processor
def test_a_sandbox_cannot_create_user_namespaces(boxed: Boxed) -> None:
    """A user namespace gives root's rights over much of the kernel: most escapes need one."""
    n, new_user = NUMBERS[os.uname().machine], 0x10000000
    output = python(
        boxed,
        CALL + f"call('unshare', {new_user})\n"
        f"call('syscall', {n['clone']}, {new_user | 17}, 0, 0, 0, 0)\n"
        f"call('syscall', {n['clone3']}, 0, 0)\n"
        f"call('syscall', {n['setns']}, 0, {new_user})",
    )
    assert output.split() == ["EPERM", "EPERM", "ENOSYS", "EPERM"]
    assert "Operation not permitted" in boxed.sh("unshare --user true")


OTHERS = """
import os
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) != os.getpid():
        status = open(f"/proc/{pid}/status").read().split()
        words = [status[status.index(name) + 1] for name in ("Seccomp:", "CapEff:")]
        try: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)); print(*words, "opened")
        except PermissionError: print(*words, "closed")
"""


@known_processor
def test_every_process_inside_is_filtered_and_has_no_capabilities(boxed: Boxed) -> None:
    """Else a command could trace, or write to the memory of, bubblewrap or the forwarder."""
    others = python(boxed, OTHERS).splitlines()
    assert len(others) == 2
    filtered_without_capabilities = f"2 {'0' * 16}"
    assert {each.rpartition(" ")[0] for each in others} == {filtered_without_capabilities}
    if os.geteuid() == 0:
        assert {each.split()[2] for each in others} == {"closed"}, "as they belong to another user"


@known_processor
def test_keyrings_bpf_and_io_uring_are_not_available(boxed: Boxed) -> None:
    n = NUMBERS[os.uname().machine]
    output = python(
        boxed,
        CALL + f"call('syscall', {n['keyctl']}, 0, -3, 1)\n"
        f"call('syscall', {n['add_key']}, b'user', b'x', b'y', 1, -3)\n"
        f"call('syscall', {n['bpf']}, 0, 0, 0)\n"
        "call('syscall', 425, 1, 0)",
    )
    assert output.split() == ["EPERM"] * 4


@known_processor
def test_a_sandbox_cannot_type_into_the_terminal_that_started_it(boxed: Boxed) -> None:
    """With TIOCSTI it could enter the user's next command."""
    ours, theirs = pty.openpty()
    script = (
        "import fcntl\n"
        "for request in (0x5412, 0x541c):\n"
        "    try: fcntl.ioctl(0, request, b'x'); print('typed')\n"
        "    except OSError as error: print(error.strerror)\n"
        "try: open('/dev/tty'); print('a terminal')\n"
        "except OSError as error: print(error.strerror)"
    )
    try:
        ran = subprocess.run(
            boxed.command("python3", "-c", script),
            stdin=theirs,
            stdout=subprocess.PIPE,
            text=True,
            user=boxed.uid,
            group=boxed.uid,
            preexec_fn=become_session_leader,
            check=False,
            timeout=300,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert ran.stdout.splitlines()[:2] == ["Operation not permitted"] * 2
    assert len(ran.stdout.splitlines()) == 3
    assert "a terminal" not in ran.stdout


def become_session_leader() -> None:
    """Start a session whose controlling terminal is stdin."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_the_filter_checks_the_architecture_first() -> None:
    """On x86-64, i386 programs use other numbers for all system calls."""
    for processor, numbers in PROCESSORS.items():
        first = filter_for(processor)[:24]
        assert first[4:8] == (4).to_bytes(4, sys.byteorder), "the field arch of seccomp_data"
        assert first[12:16] == numbers.architecture.to_bytes(4, sys.byteorder)
    assert filter_for("s390x") == b""


@pytest.mark.parametrize(
    "device",
    ["b 8 0", "b 259 0", "c 1 1", "c 10 229"],  # disks, /dev/mem, /dev/fuse
)
def test_a_sandbox_has_no_devices_of_the_host_and_cannot_create_any(
    boxed: Boxed, device: str
) -> None:
    output = boxed.sh(f"mknod made {device} && echo made; ls /dev")
    assert "Operation not permitted" in output
    inside = set(output.splitlines()[-1].split() or output.split())
    assert not inside & {"sda", "nvme0n1", "mem", "kmsg", "fuse", "kvm", "vsock", "loop0"}


def test_a_sandbox_cannot_mount_anything_or_change_its_root(boxed: Boxed) -> None:
    output = python(
        boxed,
        CALL + "call('mount', b'none', b'/tmp', b'tmpfs', 0, 0)\n"
        "call('mount', b'/', b'/tmp', None, 4096, None)\n"
        "call('umount2', b'/tmp', 2)\n"
        "call('chroot', b'/tmp')",
    )
    assert set(output.split()) == {"EPERM"}


def test_a_setuid_program_gains_no_rights(boxed: Boxed) -> None:
    output = boxed.sh("cp $(command -v id) mine && chmod 4755 mine && ./mine -u; su -c id 2>&1")
    assert "uid=0" not in output
    assert output.splitlines()[0] != "0"


@pytest.mark.parametrize(
    "path",
    [
        *("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"),
        *("/proc/sys/user/max_user_namespaces", "/proc/1/oom_score_adj"),
    ],
)
def test_a_sandbox_cannot_write_settings_of_the_kernel(own: Boxed, path: str) -> None:
    output = own.sh(f"echo x > {path} && echo written")
    assert "written" not in output


def test_sockets_of_container_services_are_not_visible(boxed: Boxed) -> None:
    """Access to the socket of Docker or podman makes a user root on the host."""
    output = boxed.sh("find / -xdev -type s 2>/dev/null; ls /run /var/run 2>&1; env")
    assert "docker" not in output
    assert "podman" not in output


def test_a_sandbox_inherits_no_open_file_of_the_harness(boxed: Boxed) -> None:
    assert boxed.sh("ls /proc/self/fd").split() == ["0", "1", "2", "3"], (
        "3 is the listed folder itself"
    )
