"""Sandboxes of the user who runs the tests and, if that is root, of an ordinary user too."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agents.sandbox import inside
from agents.sandbox.bubblewrap import Bubblewrap, SandboxLimits
from tests.agents.bubblewrap import SKIP_REASON

ORDINARY_UID = 4242
TIMEOUT_S = 120


@dataclass(frozen=True)
class Boxed:
    """A sandbox with a workspace, run as `uid`."""

    sandbox: Bubblewrap
    workspace: Path
    uid: int

    def limited(self, **limits: int) -> Boxed:
        return replace(self, sandbox=replace(self.sandbox, limits=SandboxLimits(**limits)))

    def networked(self) -> Boxed:
        return replace(self, sandbox=replace(self.sandbox, network=True))

    def command(
        self, *command: str, env: Mapping[str, str] | None = None, **paths: Any
    ) -> list[str]:
        wrapped, env = self.sandbox.wrap(command, env=env or {}, workspace=self.workspace, **paths)
        return ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *wrapped]

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, user=self.uid, group=self.uid, **options
        )

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command, **options),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            user=self.uid,
            group=self.uid,
            extra_groups=[] if os.getuid() == 0 else None,
        )

    def sh(self, script: str, **options: Any) -> str:
        """Run a script in a shell inside; return its output, including errors."""
        ran = self.run("bash", "-c", f"exec 2>&1; {script}", **options)
        assert ran.stderr == ""
        return ran.stdout


@pytest.fixture
def own() -> Iterator[Boxed]:
    """A sandbox of the user who runs the tests."""
    try:
        Bubblewrap().check()
    except ValueError as error:
        pytest.skip(str(error))
    with workspace_of(os.getuid()) as boxed:
        yield boxed


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Boxed]:
    """A sandbox of an ordinary user, if root runs the tests."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    become_ordinary(monkeypatch)
    with workspace_of(ORDINARY_UID) as boxed:
        yield boxed


@pytest.fixture(params=["own", "ordinary"] if os.getuid() == 0 else ["own"])
def boxed(request: pytest.FixtureRequest) -> Boxed:
    box = request.getfixturevalue(request.param)
    assert isinstance(box, Boxed)
    return box


@contextmanager
def workspace_of(uid: int) -> Iterator[Boxed]:
    # Not pytest's tmp_path, which is below a folder that only root can read.
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, uid, -1)
        yield Boxed(Bubblewrap(), Path(folder), uid)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def become_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `wrap` believe that an ordinary user runs it; `Boxed` runs its command as that user."""
    if SKIP_REASON:
        pytest.skip(SKIP_REASON)
    monkeypatch.setattr(os, "geteuid", lambda: ORDINARY_UID)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not reachable(Path(sys.base_prefix)) and Path("/usr/bin", version).exists():
        monkeypatch.setattr(sys, "base_prefix", "/usr")
    if not (reachable(Path(sys.base_prefix)) and reachable(Path(inside.__file__))):
        pytest.skip("only root can read the Python or the checkout that runs this")


def reachable(path: Path) -> bool:
    return all(
        each.stat().st_mode & 0o005 == 0o005 or each == path for each in (path, *path.parents)
    )
