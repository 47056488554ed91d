"""Ways out of a sandbox that are known, each tried from inside (docs/design/sandbox.md)."""

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
"""Each call of libc prints how it ended."""
CALLS = ("clone", "clone3", "setns", "keyctl", "add_key", "bpf")
NUMBERS = {
    "x86_64": dict(zip(CALLS, (56, 435, 308, 250, 248, 321), strict=True)),
    "aarch64": dict(zip(CALLS, (220, 435, 268, 219, 217, 280), strict=True)),
}
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


@pytest.mark.parametrize("to", ["/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../.."])
def test_roads_through_proc_lead_to_its_own_root(boxed: Boxed, to: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as outside:
        outside.kill()
        said = boxed.sh(f"cat {to}/etc/shadow; echo planted > {to}/etc/planted")
    assert "root:" not in said
    assert not Path("/etc/planted").exists()


def test_a_link_in_the_workspace_leads_nowhere(boxed: Boxed, shared: Path) -> None:
    (shared / "secret").write_text("hush")
    said = boxed.sh(f"ln -s {shared}/secret out; cat out; ln -s / up; cat up{shared}/secret")
    assert "hush" not in said
    assert said.count("No such file") == 2


def test_a_sandbox_does_not_see_anothers_workspace(boxed: Boxed, shared: Path) -> None:
    other = shared / "other"
    other.mkdir(mode=0o777)
    (other / "answer").write_text("hush")
    assert boxed.sh(f"ls {shared} {other}; find / -name answer 2>/dev/null").count("hush") == 0
    assert boxed.sh(f"echo mine > {other}/answer").rstrip().endswith("No such file or directory")


def test_no_process_of_the_host_is_signalled_or_traced(boxed: Boxed) -> None:
    """Nor bubblewrap's own, which is the first inside, where it is another user's (root's)."""
    with sleeper(boxed) as pid:
        said = python(
            boxed,
            CALL + f"call('kill', {pid}, 9)\n"
            f"call('ptrace', 16, {pid}, 0, 0)\n"
            f"call('syscall', 434, {pid}, 0)\n"  # pidfd_open
            f"try: open('/proc/{pid}/mem')\n"
            "except OSError as error: print(errno.errorcode[error.errno])",
        )
    assert said.split() == ["ESRCH", "ESRCH", "ESRCH", "ENOENT"]


def test_the_hosts_sockets_without_a_file_are_not_there(boxed: Boxed) -> None:
    """Abstract ones belong to a network namespace: X11's, D-Bus', containerd's once."""
    name = f"turnstile-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        said = python(
            boxed,
            "import socket\n"
            f"try: socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('reached')\n"
            "except OSError as error: print(error.strerror)",
        )
    assert said == "Connection refused\n"


def test_nothing_is_sent_out_of_it(boxed: Boxed) -> None:
    addresses = ["192.0.2.1", "127.0.0.1", "169.254.169.254", "2001:db8::1"]
    said = python(
        boxed,
        "import socket\n"
        f"for address in {addresses}:\n"
        "    family = socket.AF_INET6 if ':' in address else socket.AF_INET\n"
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):\n"
        "        try:\n"
        "            to = socket.socket(family, kind)\n"
        "            to.settimeout(5); to.connect((address, 53)); to.send(b'out')\n"
        "            print('sent to', address, kind.name)\n"
        "        except OSError: pass",
    )
    assert said == "sent to 127.0.0.1 SOCK_DGRAM\n", "its own loopback, where nobody listens"


@known_processor
def test_no_family_of_sockets_reaches_past_the_network_namespace(boxed: Boxed) -> None:
    script = (
        "import socket\n"
        "for family in range(1, 46):\n"
        "    for kind in (1, 2, 3, 5):\n"
        "        try: socket.socket(family, kind); print(family); break\n"
        "        except OSError: pass"
    )
    assert set(python(boxed, script).split()) == {"1", "2", "10", "16"}, "unix, IPv4, IPv6, netlink"


@known_processor
def test_no_further_user_namespace_is_made(boxed: Boxed) -> None:
    """In one, a user has root's rights over much of the kernel: most escapes begin there."""
    n, new_user = NUMBERS[os.uname().machine], 0x10000000
    said = python(
        boxed,
        CALL + f"call('unshare', {new_user})\n"
        f"call('syscall', {n['clone']}, {new_user | 17}, 0, 0, 0, 0)\n"
        f"call('syscall', {n['clone3']}, 0, 0)\n"
        f"call('syscall', {n['setns']}, 0, {new_user})",
    )
    assert said.split() == ["EPERM", "EPERM", "ENOSYS", "EPERM"]
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
def test_no_process_inside_can_be_made_to_call_what_is_refused(boxed: Boxed) -> None:
    """Traced, or its memory written to: bubblewrap's own, and the forwarder, are beside it."""
    others = python(boxed, OTHERS).splitlines()
    assert len(others) == 2
    under_the_filter_without_rights = f"2 {'0' * 16}"
    assert {each.rpartition(" ")[0] for each in others} == {under_the_filter_without_rights}
    if os.geteuid() == 0:
        assert {each.split()[2] for each in others} == {"closed"}, "as they are another user's"


@known_processor
def test_the_kernels_keys_programs_and_rings_are_out_of_reach(boxed: Boxed) -> None:
    n = NUMBERS[os.uname().machine]
    said = python(
        boxed,
        CALL + f"call('syscall', {n['keyctl']}, 0, -3, 1)\n"
        f"call('syscall', {n['add_key']}, b'user', b'x', b'y', 1, -3)\n"
        f"call('syscall', {n['bpf']}, 0, 0, 0)\n"
        "call('syscall', 425, 1, 0)",
    )
    assert said.split() == ["EPERM"] * 4


@known_processor
def test_nothing_is_typed_into_the_terminal_that_it_was_started_from(boxed: Boxed) -> None:
    """TIOCSTI: what it put there would be the user's next command."""
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
            preexec_fn=to_be_its_terminal,
            check=False,
            timeout=120,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert ran.stdout.splitlines()[:2] == ["Operation not permitted"] * 2
    assert len(ran.stdout.splitlines()) == 3
    assert "a terminal" not in ran.stdout


def to_be_its_terminal() -> None:
    """Of the session that begins here; its stdin is the terminal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_programs_of_another_set_of_numbers_are_not_run() -> None:
    """The filter looks at the processor first: i386 on x86-64 has other numbers for all calls."""
    for processor, numbers in PROCESSORS.items():
        first = filter_for(processor)[:24]
        assert first[4:8] == (4).to_bytes(4, sys.byteorder), "the field arch of seccomp_data"
        assert first[12:16] == numbers.architecture.to_bytes(4, sys.byteorder)
    assert filter_for("s390x") == b""


@pytest.mark.parametrize(
    "device",
    ["b 8 0", "b 259 0", "c 1 1", "c 10 229"],  # disks, /dev/mem, /dev/fuse
)
def test_no_device_is_made_or_there(boxed: Boxed, device: str) -> None:
    said = boxed.sh(f"mknod made {device} && echo made; ls /dev")
    assert "Operation not permitted" in said
    inside = set(said.splitlines()[-1].split() or said.split())
    assert not inside & {"sda", "nvme0n1", "mem", "kmsg", "fuse", "kvm", "vsock", "loop0"}


def test_nothing_is_mounted(boxed: Boxed) -> None:
    said = python(
        boxed,
        CALL + "call('mount', b'none', b'/tmp', b'tmpfs', 0, 0)\n"
        "call('mount', b'/', b'/tmp', None, 4096, None)\n"
        "call('umount2', b'/tmp', 2)\n"
        "call('chroot', b'/tmp')",
    )
    assert set(said.split()) == {"EPERM"}


def test_a_program_with_the_set_user_bit_gains_nothing(boxed: Boxed) -> None:
    said = boxed.sh("cp $(command -v id) mine && chmod 4755 mine && ./mine -u; su -c id 2>&1")
    assert "uid=0" not in said
    assert said.splitlines()[0] != "0"


@pytest.mark.parametrize(
    "path",
    [
        *("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"),
        *("/proc/sys/user/max_user_namespaces", "/proc/1/oom_score_adj"),
    ],
)
def test_the_kernels_own_files_are_not_written(own: Boxed, path: str) -> None:
    said = own.sh(f"echo x > {path} && echo written")
    assert "written" not in said


def test_the_services_that_start_containers_are_not_there(boxed: Boxed) -> None:
    """Who reaches Docker's or podman's socket is root on the host."""
    said = boxed.sh("find / -xdev -type s 2>/dev/null; ls /run /var/run 2>&1; env")
    assert "docker" not in said
    assert "podman" not in said


def test_no_open_file_of_the_harness_comes_along(boxed: Boxed) -> None:
    assert boxed.sh("ls /proc/self/fd").split() == ["0", "1", "2", "3"], "3 is the folder's own"
