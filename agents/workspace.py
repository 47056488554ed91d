"""The folder that a program's commands run in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

US = ("-c", "user.name=Turnstile", "-c", "user.email=turnstile@localhost")


def make_workspace(path: Path, begun: Path | None) -> None:
    """A copy of `begun`, or empty; a git repository, so that what an agent changes is a diff."""
    if begun is None:
        path.mkdir()
    else:
        shutil.copytree(begun, path, symlinks=True)
    git = shutil.which("git")
    if git is None or (path / ".git").exists():
        return
    commit = (*US, "commit", "--quiet", "--no-verify", "--allow-empty", "--message", "as it began")
    for words in (("init", "--quiet", "--template="), ("add", "--all"), commit):
        command = [git, "-C", str(path), *words]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603


def remove_workspace(path: Path) -> None:
    """With all that was left in it. What cannot be removed stays in the cell's folder."""
    shutil.rmtree(path, ignore_errors=True)
