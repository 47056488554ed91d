"""A program of a live agent in bubblewrap: its agent and all that the model has it run.

Inside are a read-only system, the workspace, what the caller names, and a small /tmp; no network,
but the gateway under 127.0.0.1:INSIDE_PORT (`agents.sandbox.inside` forwards it to the gateway's
unix
socket). docs/design/sandbox.md says what holds where.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.sandbox import filtered, inside, system_calls
from servers.errors import InvalidInput

INSIDE_PORT = 17331
HOME = "/tmp/home"  # noqa: S108
CHECK_WITHIN_S = 30
SHM_BYTES = 64 << 20
RUN_BYTES = 1 << 20
UIDS = Path("/run/turnstile-uids")
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_DAC_READ_SEARCH")
"""What `inside` needs as root to become another user and hand it its folders."""
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf"),
    *("ssl", "pki", "ca-certificates", "ca-certificates.conf", "crypto-policies", "mime.types"),
    *("profile", "profile.d", "bash.bashrc", "bashrc", "inputrc", "os-release", "debian_version"),
    *("host.conf", "services", "protocols"),
)
"""What git, Python, shells and TLS read; the rest of /etc is the host's own affair."""
ETC_OF_NETWORK = ("hosts", "resolv.conf")


@dataclass(frozen=True, slots=True)
class Limits:
    processes: int = 256
    """Threads too. A parallel build or test run fits; a fork bomb is a few MB and soon over."""
    memory_bytes: int = 4 << 30
    """Of each process (heaps and stacks), and of all together where the parent looks
    (`agents.sandbox.memory`). Most test suites take less than 1 GiB."""
    file_bytes: int = 1 << 30
    """Of each file, and of all of /tmp."""
    disk_bytes: int = 10 << 30
    """Of all files of the program together, where the parent looks (`agents.sandbox.files`)."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    limits: Limits = Limits()
    network: bool = False
    """The host's network, its loopback included."""

    def check(self) -> None:
        """ValueError where it does not work here; it is tried."""
        if shutil.which("bwrap") is None:
            raise InvalidInput(
                "sandbox: bwrap is not installed; get it with: apt-get install bubblewrap"
            )
        try:
            with tempfile.TemporaryDirectory() as folder:
                command, env = self.wrap(["true"], env={}, workspace=Path(folder))
                subprocess.run(  # noqa: S603
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=CHECK_WITHIN_S,
                )
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).splitlines()[-1]
            raise InvalidInput(
                f"sandbox: bwrap does not work here: {said}; it needs bubblewrap 0.6 or newer and "
                "user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
                "kernel.apparmor_restrict_unprivileged_userns=0), or run agents in containers"
            ) from None

    def gateway_url(self, url: str) -> str:
        """Where the gateway, at `url` for the host, is reached from inside."""
        return url if self.network else f"http://127.0.0.1:{INSIDE_PORT}"

    def wrap(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        workspace: Path,
        writable: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        socket: Path | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """The command line that runs `command` inside, and the environment, the only one there, to
        run it with: a key may be in it, and command lines are everybody's to read.

        It reads and writes `workspace`, where it starts, and `writable`; reads `readable`; all are
        found at their own paths. `socket`: the gateway's, in none of them. ValueError where one is
        missing."""
        owned = [Path(os.path.abspath(path)) for path in (workspace, *writable)]
        shown = {Path(os.path.abspath(path)): "--ro-bind" for path in (*readable, *_python()[1:])}
        shown |= dict.fromkeys(owned, "--bind")
        launch = {**asdict(self.limits), "owned": [HOME, *map(str, owned)], "port": INSIDE_PORT}
        launch |= {"socket": None, "uids": None}
        wrapped = [*_filtered(), *_namespaces(self.network), *_system(self), *_mounts(shown)]
        if socket is not None and not self.network:
            launch["socket"] = "/run/gateway"
            wrapped += ["--ro-bind", str(socket), "/run/gateway"]
        if os.geteuid() == 0:
            UIDS.touch(0o600)
            launch["uids"] = "/run/uids"
            wrapped += ["--bind", str(UIDS), "/run/uids"]
        wrapped += ["--ro-bind", inside.__file__, "/run/inside.py", "--chdir", str(owned[0])]
        wrapped += ["--remount-ro", "/dev", "--remount-ro", "/", "--"]
        within = [*_running("/run/inside.py"), json.dumps(launch)]
        return [*wrapped, *within, *command], {**_defaults(), **env}


def _filtered() -> list[str]:
    program = system_calls.here()
    return [*_running(filtered.__file__), program.hex()] if program else []


def _running(script: str) -> list[str]:
    return [str(_python()[0]), "-I", "-S", "-B", script]


def _namespaces(network: bool) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
    command += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--hostname", inside.HOSTNAME]
    command += [] if network else ["--unshare-net"]
    if os.geteuid() != 0:
        return [*command, "--unshare-user"]
    # In a user namespace root's processes stay uncounted.
    command += ["--cap-drop", "ALL"]
    return [*command, *(word for name in CAPABILITIES for word in ("--cap-add", name))]


def _system(sandbox: Bubblewrap) -> list[str]:
    command = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in LINKS:
        path = Path("/", name)
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    for where, size_bytes in (("/tmp", sandbox.limits.file_bytes), ("/dev/shm", SHM_BYTES)):  # noqa: S108
        command += ["--perms", "1777", "--size", str(size_bytes), "--tmpfs", where]
    command += ["--size", str(RUN_BYTES), "--tmpfs", "/run", "--dir", HOME]
    command += ["--perms", "0755", "--dir", "/etc"]
    names = (*ETC, *ETC_OF_NETWORK) if sandbox.network else ETC
    for name in names:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in (name for name in inside.ETC if name not in names):
        command += ["--symlink", f"/run/{name}", f"/etc/{name}"]
    return command


def _mounts(shown: Mapping[Path, str]) -> list[str]:
    command = []
    # A folder before what is in it, lest it cover that.
    for path, how in sorted(shown.items(), key=lambda item: len(item[0].parts)):
        if not path.exists():
            raise InvalidInput(f"sandbox: {path} is not there")
        # bubblewrap would make folders on the way for its own user alone.
        for parent in reversed(path.parents[:-1]):
            command += ["--perms", "0755", "--dir", str(parent)]
        command += [how, str(path), str(path)]
    return command


def _python() -> tuple[Path, Path]:
    """Ours, as it is without its virtual environment: the program, and the folder it needs."""
    prefix = Path(sys.base_prefix)
    return prefix / f"bin/python{sys.version_info.major}.{sys.version_info.minor}", prefix


def _defaults() -> dict[str, str]:
    names = dict.fromkeys(("USER", "LOGNAME"), "agent")
    system = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}
    return {**system, **names, "TMPDIR": "/tmp"}  # noqa: S108
