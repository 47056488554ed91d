"""The folder that a program's commands run in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from servers.errors import InvalidInput

REMOVE = ("rm", "-rf", "--one-file-system")
"""`shutil.rmtree` has a file open, and a call, for each folder on the way down."""
US = ("-c", "user.name=Turnstile", "-c", "user.email=turnstile@localhost")

OWN_GIT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
"""Whatever the user's git is told to do, such as to sign."""


def make_workspace(path: Path, begun: Path | None) -> None:
    """A copy of `begun`, or empty; a git repository, so that what an agent changes is a diff.
    Raises a ValueError or an OSError where it cannot be one."""
    if begun is None:
        path.mkdir()
    elif path.is_relative_to(begun):
        raise InvalidInput(f"workspace {begun}: this run's folder lies in it; choose another --out")
    else:
        shutil.copytree(begun, path, symlinks=True)
    git = shutil.which("git")
    if git is None or (path / ".git").exists():
        return
    commit = (*US, "commit", "--quiet", "--no-verify", "--allow-empty", "--message", "as it began")
    for words in (("init", "--quiet", "--template="), ("add", "--all"), commit):
        command = [git, "-C", str(path), *words]
        ran = subprocess.run(command, capture_output=True, text=True, env=OWN_GIT)  # noqa: S603
        if ran.returncode:
            why = (ran.stderr.strip() or f"exit code {ran.returncode}").splitlines()[-1]
            raise InvalidInput(f"workspace {begun or path}: git {words[0]}: {why}")


def remove_workspace(path: Path) -> None:
    """With all that was left in it, however deep and locked. What cannot be removed stays in the
    cell's folder."""
    for command in (REMOVE, ("chmod", "-R", "u+rwX"), REMOVE):
        if os.path.lexists(path):
            subprocess.run([*command, "--", str(path)], capture_output=True)  # noqa: S603
