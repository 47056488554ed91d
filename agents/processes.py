"""Runs the process of one program: boots it early, starts its task, and ends its descendants.

It runs under a supervisor (`servers.processes.supervisor`), so that no process outlives the
harness, however that ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from servers.errors import AgentStartError
from servers.processes.supervised import liveness_pipe, supervised_command

GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL."""
STOP_WITHIN_S = 30.0
BOOT_WITHIN_S = 600.0
LOGGED_WITHIN_S = 5.0
SHOWN_CHARS = 200
PIECE_BYTES = 1 << 16
LAST_BYTES = 1 << 16
MAX_LOG_BYTES = 64 << 20
"""Limit of stdout and stderr together."""
LOG_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
"""The log is opened once, before the program starts, because the program may replace the file by a
link or a pipe."""


class Process:
    """An async context manager; no descendant of the process is left when it exits."""

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
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            for each in self._log_tasks:
                each.cancel()
            os.close(self._log_fd)

    @property
    def pid(self) -> int:
        """The supervisor's, which is the root of the process tree."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until the process prints `ready`. Raises AgentStartError if it does not."""
        if self._process.stdout is None:
            raise RuntimeError("started without a pipe")
        try:
            async with asyncio.timeout(BOOT_WITHIN_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise AgentStartError(
                f"not ready within {BOOT_WITHIN_S:g} s{self.last_log_line()}"
            ) from None
        if line.strip() != b"ready":
            await self._drain_log()
            raise AgentStartError(f"ended before it was ready{self.last_log_line()}")

    def start_task(self) -> None:
        if self._process.stdin is None:
            raise RuntimeError("started without a pipe")
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()
        self._log_tasks.add(asyncio.create_task(self._log_all(self._process.stdout)))

    async def wait(self) -> int:
        """Return the exit code; 128 + number for a signal."""
        code = await self._process.wait()
        await self._drain_log()
        return code if code >= 0 else 128 - code

    async def _drain_log(self) -> None:
        """Wait for output that is not logged yet. A descendant may still hold the output open."""
        await asyncio.wait(self._log_tasks, timeout=LOGGED_WITHIN_S)

    async def _log_all(self, output: asyncio.StreamReader | None) -> None:
        """Log up to MAX_LOG_BYTES; drops the rest, so that the process is never blocked."""
        while output is not None and (piece := await output.read(PIECE_BYTES)):
            room = max(MAX_LOG_BYTES - os.fstat(self._log_fd).st_size, 0)
            with suppress(OSError):  # the disk is full
                os.write(self._log_fd, piece[:room])

    def last_log_line(self) -> str:
        """Return the last line of the log, after a colon; empty if there is none."""
        start = max(os.fstat(self._log_fd).st_size - LAST_BYTES, 0)
        tail = os.pread(self._log_fd, LAST_BYTES, start).decode(errors="replace")
        # Control characters would change the user's terminal.
        lines = ["".join(filter(str.isprintable, line)).strip() for line in tail.split("\n")]
        last = next(filter(None, reversed(lines)), "")
        return f": {last[:SHOWN_CHARS]}" if last else ""
