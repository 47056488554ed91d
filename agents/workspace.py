"""The folder that a program's commands run in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def make_workspace(path: Path, begun: Path | None) -> None:
    """A copy of `begun`, or empty; a git repository, so that what an agent changes is a diff."""
    if begun is None:
        path.mkdir()
    else:
        shutil.copytree(begun, path, symlinks=True)
    git = shutil.which("git")
    if git is not None and not (path / ".git").exists():
        init = [git, "init", "--quiet", "--template=", str(path)]
        subprocess.run(init, check=True, capture_output=True)  # noqa: S603


def remove_workspace(path: Path) -> None:
    """With all that was left in it. What cannot be removed stays in the cell's folder."""
    shutil.rmtree(path, ignore_errors=True)
