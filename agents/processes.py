"""A program's process: booted ahead, let go at its arrival, ended with all that came of it.

It runs under a keeper (`servers.keeper`), so that none outlives the harness, however that ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from servers.kept import keeping

GRACE_S = 3.0
"""Between SIGTERM and SIGKILL."""
STOP_WITHIN_S = 30.0
BOOT_WITHIN_S = 600.0
SHOWN_CHARS = 200


class Broken(Exception):
    """A process that never came to its task; one line, with what it said last."""


class Process:
    """`async with` it: at the end nothing of it is left."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        self._command, self._env, self._cwd, self._log = command, env, cwd, log

    async def __aenter__(self) -> Process:
        theirs, self._alive = os.pipe()
        try:
            with self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *keeping(self._command, theirs, GRACE_S),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=dict(self._env),
                    cwd=self._cwd,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(theirs)
        self._output: asyncio.Task[None] | None = None
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._alive)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            if self._output is not None:
                self._output.cancel()

    @property
    def pid(self) -> int:
        """Of its keeper, the root of the tree."""
        return self._process.pid

    async def ready(self) -> None:
        """Raises Broken where it ends, or takes too long, before it says so."""
        if self._process.stdout is None:
            raise RuntimeError("started without a pipe")
        try:
            async with asyncio.timeout(BOOT_WITHIN_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise Broken(f"not ready within {BOOT_WITHIN_S:g} s{self.last_words()}") from None
        if line.strip() != b"ready":
            raise Broken(f"ended before it was ready{self.last_words()}")

    def go(self) -> None:
        if self._process.stdin is None:
            raise RuntimeError("started without a pipe")
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()
        self._output = asyncio.create_task(self._keep_output())

    async def ended(self) -> int:
        """Its exit code; 128 + number for a signal."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def _keep_output(self) -> None:
        """What it prints goes to its log, too."""
        if self._process.stdout is None:
            return
        with self._log.open("ab", buffering=0) as log:
            while said := await self._process.stdout.read(1 << 16):
                log.write(said)

    def last_words(self) -> str:
        """The last line of its log, after a colon; empty where there is none."""
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last[:SHOWN_CHARS]}" if last else ""
