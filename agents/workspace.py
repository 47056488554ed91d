"""Makes and removes the folder in which a program's commands run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from servers.basics.errors import InvalidInput

REMOVE = ("rm", "-rf", "--one-file-system")
"""Not `shutil.rmtree`, which opens a file per level, so a deep tree exceeds the limit of files."""
COMMITTER = ("-c", "user.name=Turnstile", "-c", "user.email=turnstile@localhost")

GIT_ENV = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
"""Without the user's git settings, which may require signed commits."""


def make_workspace(path: Path, source: Path | None) -> None:
    """Make a copy of `source`, or an empty folder, at `path`.

    The folder becomes a git repository, so that the agent's changes can be shown as a diff. Raises
    InvalidInput or OSError.
    """
    if source is None:
        path.mkdir()
    elif path.is_relative_to(source):
        raise InvalidInput(
            f"workspace {source}: contains the folder of this run; give another --out"
        )
    else:
        shutil.copytree(source, path, symlinks=True)
    git = shutil.which("git")
    if git is None or (path / ".git").exists():
        return
    commit = (
        *COMMITTER,
        "commit",
        "--quiet",
        "--no-verify",
        "--allow-empty",
        "-m",
        "initial state",
    )
    for words in (("init", "--quiet", "--template="), ("add", "--all"), commit):
        command = [git, "-C", str(path), *words]
        process = subprocess.run(command, capture_output=True, text=True, env=GIT_ENV)  # noqa: S603
        if process.returncode:
            reason = (process.stderr.strip() or f"exit code {process.returncode}").splitlines()[-1]
            raise InvalidInput(f"workspace {source or path}: git {words[0]}: {reason}")


def remove_workspace(path: Path) -> None:
    """Remove the folder, even if it is deep or contains unreadable folders.

    Files that cannot be removed are left in the cell's folder.
    """
    for command in (REMOVE, ("chmod", "-R", "u+rwX"), REMOVE):
        if os.path.lexists(path):
            subprocess.run([*command, "--", str(path)], capture_output=True)  # noqa: S603
