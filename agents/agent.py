"""The interface between the harness and an agent.

Each program is one process. It reads its task from `launch.json`, so that the task does not appear
on a command line, and writes `result.json` next to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from traces.lenient import mapping

RESULT = "result.json"
MAX_RESULT_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Launch:
    """The contents of `launch.json`, with which a process runs one program."""

    program_id: str
    task: str
    base_url: str
    """The gateway's URL including `/v1`, as seen by the process. Its path names the program."""
    model: str
    workspace: str
    """The folder in which the agent's commands run."""
    folder: str
    """The folder for the result and the agent's own files."""
    max_turns: int | None
    """None for no limit."""
    environment: Mapping[str, Any]
    """mini-swe-agent's settings for the environment of its commands."""
    socket: str | None = None
    """The gateway's Unix socket, used by a sandbox without network, not by the process."""
    config: str | None = None
    """The file with the agent's own settings."""

    @property
    def file(self) -> Path:
        return Path(self.folder) / "launch.json"

    def write(self) -> None:
        self.file.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))


@dataclass(frozen=True, slots=True)
class Result:
    exit_status: str
    """Empty if the agent wrote no result."""
    submission: str = ""


class Agent(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def boots_early(self) -> bool:
        """Whether a process can be started before its program arrives.

        Such a process prints `ready` when it has booted, and starts its task when it reads a line.
        """

    def check(self) -> str:
        """Return the agent's version. Raises InvalidInput if it is not installed."""

    def command(self, launch_file: Path) -> list[str]: ...
    def readable(self) -> list[Path]:
        """Paths outside the system directories that the process must be able to read."""

    def env(self) -> Mapping[str, str]: ...


def read_result(folder: Path) -> Result:
    """Read the result in a program's folder. It is untrusted: an agent may write anything."""
    try:
        result = mapping(orjson.loads(_read_file(folder / RESULT)))
    except (OSError, orjson.JSONDecodeError):
        return Result("")
    status, submission = result.get("exit_status"), result.get("submission")
    return Result(
        status[:200] if isinstance(status, str) else "",
        submission if isinstance(submission, str) else "",
    )


def _read_file(path: Path) -> bytes:
    """Raises OSError for files that are not regular: reading from a pipe would block."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_RESULT_BYTES:
            raise OSError(f"{path}: not a regular file of at most {MAX_RESULT_BYTES} bytes")
        return os.read(handle, MAX_RESULT_BYTES)
    finally:
        os.close(handle)
