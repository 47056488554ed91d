"""Runs the process of one program: boots it, starts its task, and ends it with its descendants.

The process runs under a supervisor (`servers.processes.supervisor`), so that it never outlives the
harness, even if the harness is killed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from servers.basics.errors import AgentStartError
from servers.processes.supervised import liveness_pipe, supervised_command

GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL."""
STOP_TIMEOUT_S = 30.0
BOOT_TIMEOUT_S = 600.0
DRAIN_TIMEOUT_S = 5.0
MAX_LINE_CHARS = 200
READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 16
MAX_LOG_BYTES = 64 << 20
"""Limit of stdout and stderr together."""
LOG_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
"""The log is opened once, before the program starts, because the program may replace the file with
a link or a pipe."""


class Process:
    """An async context manager that ends the process and all its descendants on exit."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        self._command, self._env, self._cwd, self._log = command, env, cwd, log

    async def __aenter__(self) -> Process:
        with liveness_pipe() as (read_end, self._write_end):
            self._log_fd = os.open(self._log, LOG_FLAGS, 0o600)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *supervised_command(self._command, read_end, GRACE_S),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=dict(self._env),
                    cwd=self._cwd,
                    pass_fds=[read_end],
                    start_new_session=True,
                )
            except BaseException:
                os.close(self._log_fd)
                raise
        self._log_tasks = {asyncio.create_task(self._log_all(self._process.stderr))}
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._write_end)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            for task in self._log_tasks:
                task.cancel()
            os.close(self._log_fd)

    @property
    def pid(self) -> int:
        """Process id of the supervisor, which is the root of the process tree."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until the process prints `ready`. Raises AgentStartError if it does not."""
        if self._process.stdout is None:
            raise RuntimeError("the process has no stdout pipe")
        try:
            async with asyncio.timeout(BOOT_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise AgentStartError(
                f"was not ready within {BOOT_TIMEOUT_S:g} s{self.last_log_line()}"
            ) from None
        if line.strip() != b"ready":
            await self._drain_log()
            raise AgentStartError(f"ended before it was ready{self.last_log_line()}")

    def start_task(self) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process has no stdin pipe")
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()
        self._log_tasks.add(asyncio.create_task(self._log_all(self._process.stdout)))

    async def wait(self) -> int:
        """Wait for the exit, and return the exit code; for a signal, 128 + its number."""
        code = await self._process.wait()
        await self._drain_log()
        return code if code >= 0 else 128 - code

    async def _drain_log(self) -> None:
        """Wait until all output is logged, or a timeout, since a descendant may keep it open."""
        await asyncio.wait(self._log_tasks, timeout=DRAIN_TIMEOUT_S)

    async def _log_all(self, output: asyncio.StreamReader | None) -> None:
        """Log up to MAX_LOG_BYTES, and discard the rest, so that the process never blocks."""
        while output is not None and (received := await output.read(READ_BYTES)):
            room = max(MAX_LOG_BYTES - os.fstat(self._log_fd).st_size, 0)
            with suppress(OSError):  # the disk is full
                os.write(self._log_fd, received[:room])

    def last_log_line(self) -> str:
        """Return the last line of the log after a colon, or "" if the log is empty."""
        start = max(os.fstat(self._log_fd).st_size - TAIL_BYTES, 0)
        tail = os.pread(self._log_fd, TAIL_BYTES, start).decode(errors="replace")
        # Control characters could change the user's terminal.
        lines = ["".join(filter(str.isprintable, line)).strip() for line in tail.split("\n")]
        last = next(filter(None, reversed(lines)), "")
        return f": {last[:MAX_LINE_CHARS]}" if last else ""
