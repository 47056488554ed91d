"""Start vLLM servers for a command. Print the progress, and a failure as one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import typer
from rich.console import Console
from rich.status import Status

from harness.console import print_message
from harness.load.settings import Server
from servers.errors import ServerFailed
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.replicas import launch_replicas
from servers.vllm.launch.server import VllmServer

PLAIN_INTERVAL_S = 10.0


def fresh_folder(command: str) -> Path:
    """Return the path of a new folder for the log and the settings of a server."""
    return Path("runs") / command / time.strftime("%Y-%m-%d_%H-%M-%S")


@contextmanager
def running_servers(
    config: ServerConfig, folder: Path, settings: Server, *, port: int | None = None
) -> Iterator[tuple[list[VllmServer], float]]:
    """Yield the servers and their start time in seconds. Exit with code 1 if a server fails."""
    try:
        with StartProgress(folder / "server.log") as progress:
            servers = launch_replicas(
                config,
                settings.replicas,
                folder,
                port=port,
                python=settings.vllm_python,
                ready_within_s=settings.ready_within_s,
                on_progress=progress.report,
            )
        with ExitStack() as stack:
            for server in servers:
                stack.enter_context(server)
            yield servers, progress.seconds
    except ServerFailed as failed:
        for line in failed.tail:
            print(f"  {line}", file=sys.stderr)
        print_message(str(failed))
        raise typer.Exit(1) from None


class StartProgress:
    """Progress of a start on stderr: a status line on a terminal, otherwise a line every 10 s."""

    def __init__(self, log: Path) -> None:
        self._log: Path | None = log
        console = Console(stderr=True, highlight=False)
        self._status = Status("", console=console) if console.is_terminal else None
        self._printed_at_s = 0.0
        self._since_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since_s

    def report(self, elapsed_s: float, line: str) -> None:
        if self._log is not None:
            print(f"log: {self._log}", file=sys.stderr)
            self._log = None
        progress = f"starting vLLM, {elapsed_s:.0f} s: {line[:80]}"
        if self._status is not None:
            self._status.update(progress.replace("[", r"\["))
        elif elapsed_s - self._printed_at_s >= PLAIN_INTERVAL_S:
            self._printed_at_s = elapsed_s
            print(progress, file=sys.stderr, flush=True)
