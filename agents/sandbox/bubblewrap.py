"""Runs an agent, and all commands of its model, in bubblewrap.

The sandbox contains a read-only system, the workspace, paths given by the caller, and a small
/tmp. Its only network is the gateway at 127.0.0.1:INSIDE_PORT, which `agents.sandbox.inside`
forwards to the gateway's Unix socket. docs/design/security.md lists the guarantees.
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
from servers.basics.errors import InvalidInput

INSIDE_PORT = 17331
HOME = "/tmp/home"  # noqa: S108
CHECK_TIMEOUT_S = 30
SHM_BYTES = 64 << 20
RUN_BYTES = 1 << 20
UIDS = Path("/run/turnstile-uids")
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_DAC_READ_SEARCH")
"""Needed by `inside` if we are root, to change owners and to become another user."""
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf"),
    *("ssl", "pki", "ca-certificates", "ca-certificates.conf", "crypto-policies", "mime.types"),
    *("profile", "profile.d", "bash.bashrc", "bashrc", "inputrc", "os-release", "debian_version"),
    *("host.conf", "services", "protocols"),
)
"""Files that git, Python, shells and TLS need. The rest of /etc is not visible."""
ETC_OF_NETWORK = ("hosts", "resolv.conf")


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    processes: int = 256
    """Includes threads. Enough for a parallel build; a fork bomb takes only a few MB."""
    memory_bytes: int = 4 << 30
    """Limit of each process (heap and stack), and of all processes together, as measured by
    `agents.sandbox.memory`. Most test suites need less than 1 GiB."""
    file_bytes: int = 1 << 30
    """Limit of each file, and of all of /tmp."""
    disk_bytes: int = 10 << 30
    """Limit of all files of the program together, as measured by `agents.sandbox.files`."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    limits: SandboxLimits = SandboxLimits()
    network: bool = False
    """Whether to share the host's network, including loopback."""

    def check(self) -> None:
        """Run `true` in a sandbox. Raises InvalidInput if that fails."""
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
                    timeout=CHECK_TIMEOUT_S,
                )
        except (OSError, subprocess.SubprocessError) as error:
            reason = (getattr(error, "stderr", None) or str(error)).splitlines()[-1]
            raise InvalidInput(
                f"sandbox: bwrap does not work here: {reason}; it needs bubblewrap 0.6 or newer "
                "and user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
                "kernel.apparmor_restrict_unprivileged_userns=0), or run agents in containers"
            ) from None

    def gateway_url(self, url: str) -> str:
        """Return the URL inside the sandbox of the gateway at `url`."""
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
        """Return the command line that runs `command` in the sandbox, and its whole environment.

        The command line contains no variables, because all users can read it, and a variable may be
        a key. The command starts in `workspace`. It can read and write `workspace` and `writable`,
        and read `readable`, all at their paths outside. `socket` is the gateway's, in none of these
        folders. Raises InvalidInput if a path does not exist.
        """
        owned = [Path(os.path.abspath(path)) for path in (workspace, *writable)]
        shown = {Path(os.path.abspath(path)): "--ro-bind" for path in (*readable, *_python()[1:])}
        shown |= dict.fromkeys(owned, "--bind")
        launch = {**asdict(self.limits), "owned": [HOME, *map(str, owned)], "port": INSIDE_PORT}
        launch |= {"socket": None, "uids": None}
        wrapped = [*_filter_command(), *_namespaces(self.network), *_system(self), *_mounts(shown)]
        if socket is not None and not self.network:
            launch["socket"] = "/run/gateway"
            wrapped += ["--ro-bind", str(socket), "/run/gateway"]
        if os.geteuid() == 0:
            UIDS.touch(0o600)
            launch["uids"] = "/run/uids"
            wrapped += ["--bind", str(UIDS), "/run/uids"]
        wrapped += ["--ro-bind", inside.__file__, "/run/inside.py", "--chdir", str(owned[0])]
        wrapped += ["--remount-ro", "/dev", "--remount-ro", "/", "--"]
        first_process = [*_python_command("/run/inside.py"), json.dumps(launch)]
        return [*wrapped, *first_process, *command], {**_default_env(), **env}


def _filter_command() -> list[str]:
    program = system_calls.filter_for_this_machine()
    return [*_python_command(filtered.__file__), program.hex()] if program else []


def _python_command(script: str) -> list[str]:
    return [str(_python()[0]), "-I", "-S", "-B", script]


def _namespaces(network: bool) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
    command += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--hostname", inside.HOSTNAME]
    command += [] if network else ["--unshare-net"]
    if os.geteuid() != 0:
        return [*command, "--unshare-user"]
    # RLIMIT_NPROC would not count root's processes in a user namespace.
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
    for folder, size_bytes in (("/tmp", sandbox.limits.file_bytes), ("/dev/shm", SHM_BYTES)):  # noqa: S108
        command += ["--perms", "1777", "--size", str(size_bytes), "--tmpfs", folder]
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
    # A folder is mounted before paths inside it, so that it does not hide them.
    for path, option in sorted(shown.items(), key=lambda item: len(item[0].parts)):
        if not path.exists():
            raise InvalidInput(f"sandbox: {path} does not exist")
        # bubblewrap would make missing parent folders readable only by its own user.
        for parent in reversed(path.parents[:-1]):
            command += ["--perms", "0755", "--dir", str(parent)]
        command += [option, str(path), str(path)]
    return command


def _python() -> tuple[Path, Path]:
    """Return our Python's program outside the virtual environment, and the folder that it needs."""
    prefix = Path(sys.base_prefix)
    return prefix / f"bin/python{sys.version_info.major}.{sys.version_info.minor}", prefix


def _default_env() -> dict[str, str]:
    names = dict.fromkeys(("USER", "LOGNAME"), "agent")
    system = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}
    return {**system, **names, "TMPDIR": "/tmp"}  # noqa: S108
