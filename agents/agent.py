"""What the harness knows of an agent: how a process of it is started, and what it leaves.

Each program is one process. It is told what to do by a file, `launch.json`, and leaves its
`result.json` beside it, so that nothing of it has to be on a command line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

RESULT = "result.json"
MOST_SUBMISSION_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Launch:
    """`launch.json`: one program, for its process."""

    program_id: str
    task: str
    base_url: str
    """Of the gateway, up to `/v1`, as the process reaches it; it names the program."""
    model: str
    workspace: str
    """Folder in which commands run."""
    folder: str
    """For what it leaves."""
    max_turns: int | None
    """None: as many as it likes."""
    environment: Mapping[str, Any]
    """mini-swe-agent's: where its commands run."""
    socket: str | None = None
    """Its own way to the gateway, where it has no network; not for the process to use."""
    config: str | None = None
    """File of the agent's own settings."""

    @property
    def file(self) -> Path:
        return Path(self.folder) / "launch.json"

    def write(self) -> None:
        self.file.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))


@dataclass(frozen=True, slots=True)
class Result:
    exit_status: str
    """In the agent's words; empty where it left none."""
    submission: str = ""


class Agent(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def ahead(self) -> bool:
        """Its process says `ready` on stdout when it has booted, and begins at a line on stdin."""

    def check(self) -> str:
        """Its version. Raises a ValueError, in one line with the remedy, where it is not here."""

    def command(self, launch_file: Path) -> list[str]: ...
    def readable(self) -> list[Path]:
        """Folders and files that its process reads, besides the system's."""

    def env(self) -> Mapping[str, str]: ...


def read_result(folder: Path) -> Result:
    """What a process left in its folder; it is the agent's, so anything may stand there."""
    try:
        said = orjson.loads(_file(folder / RESULT))
    except (OSError, orjson.JSONDecodeError):
        return Result("")
    if not isinstance(said, dict):
        return Result("")
    status, submission = said.get("exit_status"), said.get("submission")
    return Result(
        status[:200] if isinstance(status, str) else "",
        submission if isinstance(submission, str) else "",
    )


def _file(path: Path) -> bytes:
    """Raises an OSError for what is none, such as a pipe, at which a reader would wait."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_SUBMISSION_BYTES:
            raise OSError(f"{path}: no file of at most {MOST_SUBMISSION_BYTES} bytes")
        return os.read(handle, MOST_SUBMISSION_BYTES)
    finally:
        os.close(handle)
