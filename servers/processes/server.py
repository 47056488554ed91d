"""Starts a server on free ports of 127.0.0.1, waits until it is healthy, and stops it.

A kind of server is a subclass of `ServerProcess`, which says what to run, when it is healthy, and
which line of its log has the cause of a failure. All waits have a timeout.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self, TypeVar

from servers.basics.errors import ServerFailed
from servers.processes.parallel_start import Progress
from servers.processes.port import REQUEST_ERRORS, Port, request
from servers.processes.supervised import SupervisedProcess

POLL_S = 0.1
MAX_STARTS = 3
"""Maximum number of attempts if another process takes a free port that was chosen."""
TAKEN = "ddress already in use"
TAIL_LINES = 15
END_BYTES = 65_536
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
UNUSABLE = (*REQUEST_ERRORS, ValueError, LookupError, TypeError)
"""The errors of a request, and of reading its response."""
S = TypeVar("S", bound="ServerProcess")


class ServerProcess(ABC):
    """A server, and a context manager that stops it: `with launch(…) as server:`."""

    def __init__(self, name: str, log: Path, port: int | None = None) -> None:
        """Reserve the port. `name`: of the server in messages. Raises Unavailable."""
        self.name, self.log = name, log
        self.processes: dict[str, SupervisedProcess] = {}
        """By their names in messages."""
        self.headers: dict[str, str] = {}
        """Of each request."""
        self.resources = ExitStack()
        """What `stop` ends and removes, the newest first."""
        self.port = self.reserve_port(port)
        self.base_url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start the processes. If this fails, `stop` is called."""

    @abstractmethod
    def is_healthy(self) -> bool:
        """Return whether the server can take turns. May raise one of `UNUSABLE` if it cannot."""

    @abstractmethod
    def cause(self, log: Path) -> str:
        """Return the line of the log that explains a failure."""

    def lines(self, log: Path) -> list[str]:
        """Return the last lines of the log as they are shown to users."""
        return read_end(log)

    def describe(self) -> None:  # noqa: B027
        """Complete the description of the server, which has just become healthy."""

    @property
    def pid(self) -> int:
        """Process id of the supervisor, which leads the process group."""
        return self.processes[self.name].pid

    def reserve_port(self, number: int | None = None) -> int:
        port = Port(number)
        self.resources.callback(port.close)
        return port.number

    def supervise(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path | None = None
    ) -> None:
        """Start the server's only process. `folder` is removed when it ends."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        process = SupervisedProcess(command, env, self.log, folder)
        self.processes[self.name] = process
        self.resources.callback(process.stop)

    def request(
        self, path: str, *, method: str = "GET", timeout_s: float = 30.0
    ) -> tuple[int, bytes]:
        """Return the status and the body. Raises one of `loopback.REQUEST_ERRORS`."""
        return request(self.port, path, method, self.headers, timeout_s)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the server ends. Raises subprocess.TimeoutExpired."""
        self.processes[self.name].wait(timeout_s)

    def wait_until_healthy(self, started_s: float, within_s: float, on_progress: Progress) -> None:
        """Raises ServerFailed, and the errors of `on_progress`."""
        while True:
            if (failure := self.failure()) is not None:
                raise failure
            with suppress(*UNUSABLE):
                if self.is_healthy():
                    return
            waited_s = time.monotonic() - started_s
            if waited_s > within_s:
                raise self.failure() or self.failed(f"was not healthy after {within_s:g} s")
            on_progress(waited_s, (self.lines(self.log) or [""])[-1])
            time.sleep(POLL_S)

    def failure(self) -> ServerFailed | None:
        """Return why a process exited unexpectedly; None while all run and after `stop`."""
        for name, process in self.processes.items():
            if (what := process.exit_reason()) is not None:
                return self.failed(what, name=name)
        return None

    def failed(
        self, what: str, *, name: str | None = None, cause: str | None = None
    ) -> ServerFailed:
        """Return the error for a server that `what` ("exited"). `name`: of the process that failed.
        The default cause is from its log."""
        process = self.processes.get(name or self.name)
        log = self.log if process is None else process.log
        cause = cause or f"{self.cause(log)} (log: {log})"
        message = f"{name or self.name} {what}: {cause}"
        return ServerFailed(message, log, self.lines(log)[-TAIL_LINES:])

    def port_was_taken(self) -> bool:
        """Return whether a process failed because another one uses its port."""
        logs = [process.log for process in self.processes.values()]
        return any(TAKEN in line for log in logs for line in read_end(log))

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to all descendants, and wait until all have ended."""
        self.resources.close()


def launch(
    make: Callable[[], S],
    *,
    within_s: float,
    on_progress: Progress | None = None,
    starts: int = MAX_STARTS,
) -> S:
    """Start a server and wait until it is healthy, with other ports if its ports are taken, in at
    most `starts` attempts. Raises ServerFailed."""
    started_s = time.monotonic()
    while True:
        starts -= 1
        server = make()
        try:
            server.start()
            server.wait_until_healthy(started_s, within_s, on_progress or (lambda *_: None))
            server.describe()
        except BaseException as error:
            server.stop()
            if not (isinstance(error, ServerFailed) and starts and server.port_was_taken()):
                raise
        else:
            return server


def read_end(log: Path) -> list[str]:
    """Return the non-empty lines of the last END_BYTES without colours; none if there is no log."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        text = COLOURS.sub("", file.read().decode(errors="replace"))
        return [line.rstrip() for line in text.split("\n") if line.strip()]
    return []


def last_error(lines: Sequence[str], error: re.Pattern[str], prefix: re.Pattern[str]) -> str:
    """Return the last line with an error, or else the last line, without its prefix. The lines of a
    traceback and of debug output do not count."""
    messages = [line for line in lines if not line.startswith((" ", "DEBUG: "))]
    errors = [line for line in messages if error.search(line)]
    return prefix.sub("", (errors or messages or ["its log has no message"])[-1])
