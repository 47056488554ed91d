"""A program's process: booted ahead, let go at its arrival, ended with all that came of it.

It runs under a keeper (`servers.processes.supervisor`), so that none outlives the harness, however
that ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from servers.errors import AgentStartError
from servers.processes.supervised import alive_while_open, keeping

GRACE_S = 3.0
"""Between SIGTERM and SIGKILL."""
STOP_WITHIN_S = 30.0
BOOT_WITHIN_S = 600.0
LOGGED_WITHIN_S = 5.0
SHOWN_CHARS = 200
PIECE_BYTES = 1 << 16
LAST_BYTES = 1 << 16
MOST_LOG_BYTES = 64 << 20
"""Of what it prints, on both of its outputs."""
LOG_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
"""Opened once, before the program begins, which may then put a link or a pipe in its place."""


class Process:
    """`async with` it: at the end nothing of it is left."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        self._command, self._env, self._cwd, self._log = command, env, cwd, log

    async def __aenter__(self) -> Process:
        with alive_while_open() as (theirs, self._alive):
            self._said = os.open(self._log, LOG_FLAGS, 0o600)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *keeping(self._command, theirs, GRACE_S),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=dict(self._env),
                    cwd=self._cwd,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
            except BaseException:
                os.close(self._said)
                raise
        self._logged = {asyncio.create_task(self._log_all(self._process.stderr))}
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._alive)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            for each in self._logged:
                each.cancel()
            os.close(self._said)

    @property
    def pid(self) -> int:
        """Of its keeper, the root of the tree."""
        return self._process.pid

    async def ready(self) -> None:
        """Raises AgentStartError where it ends, or takes too long, before it says so."""
        if self._process.stdout is None:
            raise RuntimeError("started without a pipe")
        try:
            async with asyncio.timeout(BOOT_WITHIN_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise AgentStartError(
                f"not ready within {BOOT_WITHIN_S:g} s{self.last_words()}"
            ) from None
        if line.strip() != b"ready":
            await self._all_logged()
            raise AgentStartError(f"ended before it was ready{self.last_words()}")

    def go(self) -> None:
        if self._process.stdin is None:
            raise RuntimeError("started without a pipe")
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()
        self._logged.add(asyncio.create_task(self._log_all(self._process.stdout)))

    async def ended(self) -> int:
        """Its exit code; 128 + number for a signal."""
        code = await self._process.wait()
        await self._all_logged()
        return code if code >= 0 else 128 - code

    async def _all_logged(self) -> None:
        """What it said before it ended; one that only closed its output may go on."""
        await asyncio.wait(self._logged, timeout=LOGGED_WITHIN_S)

    async def _log_all(self, said: asyncio.StreamReader | None) -> None:
        """Up to an end: what is past that is read, lest it wait, and dropped."""
        while said is not None and (piece := await said.read(PIECE_BYTES)):
            room = max(MOST_LOG_BYTES - os.fstat(self._said).st_size, 0)
            with suppress(OSError):  # A disk that is full.
                os.write(self._said, piece[:room])

    def last_words(self) -> str:
        """The last line of its log, after a colon; empty where there is none."""
        start = max(os.fstat(self._said).st_size - LAST_BYTES, 0)
        said = os.pread(self._said, LAST_BYTES, start).decode(errors="replace")
        # A terminal obeys what is not printable.
        lines = ["".join(filter(str.isprintable, line)).strip() for line in said.split("\n")]
        last = next(filter(None, reversed(lines)), "")
        return f": {last[:SHOWN_CHARS]}" if last else ""
