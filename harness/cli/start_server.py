"""Start vLLM servers for a command, also behind a gateway with a router, and print their status and
failures."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import typer
from rich.console import Console
from rich.status import Status

from harness.console import print_message
from harness.gateway.recording import recording
from harness.gateway.serving import tune_garbage_collector
from harness.load.settings import Server
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidInput, ServerFailed
from servers.processes.supervised import first_failure
from servers.routing import NamedRouter
from servers.variants import one_router
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.replicas import launch_replicas
from servers.vllm.launch.server import VllmServer

POLL_INTERVAL_S = 1.0


def router_of(text: str, replicas: int) -> NamedRouter:
    """Return the router of this name. Raises InvalidInput."""
    if replicas < 2:
        raise InvalidInput(
            f"--router {text}: distributes turns over several replicas; add --replicas with at "
            "least 2, or remove it"
        )
    return one_router(text)


def serve_behind(
    router: NamedRouter, servers: Sequence[VllmServer], folder: Path, port: int
) -> None:
    """Print the base URL of the gateway, and serve until Ctrl-C. Raises ServerFailed."""
    backends = [
        LiveServer(
            server.base_url,
            tagged=True,
            events=server.events_path if server.info.policy else None,
            kv_tokens=server.info.kv_blocks * server.info.block_size,
        )
        for server in servers
    ]
    tune_garbage_collector()
    asyncio.run(_serve(router, servers, backends, folder, port))


async def _serve(
    router: NamedRouter,
    servers: Sequence[VllmServer],
    backends: Sequence[LiveServer],
    folder: Path,
    port: int,
) -> None:
    async with recording(backends, folder, port=port, router=router) as recorded:
        print(recorded.base_url, flush=True)
        print(f"router {router.name}; turns are recorded in {recorded.lines_file}", file=sys.stderr)
        while (failure := first_failure(servers)) is None:
            await asyncio.sleep(POLL_INTERVAL_S)
        raise failure


PLAIN_INTERVAL_S = 10.0


def fresh_folder(command: str) -> Path:
    """Return the path of a new folder for the log and the settings of a server."""
    return Path("runs") / command / time.strftime("%Y-%m-%d_%H-%M-%S")


@contextmanager
def running_servers(
    config: ServerConfig, folder: Path, settings: Server, *, port: int | None = None
) -> Iterator[tuple[list[VllmServer], float]]:
    """Yield the servers and their start time in seconds. Exit with code 1 if a server fails."""
    started_at_s = time.monotonic()
    log: Path | None = folder / "server.log"

    def on_progress(elapsed_s: float, line: str) -> None:
        nonlocal log
        if log is not None:
            print(f"log: {log}", file=sys.stderr)
            log = None
        status.show(f"starting vLLM, {elapsed_s:.0f} s: {line[:80]}")

    try:
        with StatusLine() as status:
            servers = launch_replicas(
                config,
                settings.replicas,
                folder,
                port=port,
                python=settings.vllm_python,
                ready_within_s=settings.ready_within_s,
                on_progress=on_progress,
            )
        with ExitStack() as stack:
            for server in servers:
                stack.enter_context(server)
            yield servers, time.monotonic() - started_at_s
    except ServerFailed as failed:
        for line in failed.tail:
            print(f"  {line}", file=sys.stderr)
        print_message(str(failed))
        raise typer.Exit(1) from None


class StatusLine:
    """A status on stderr: one changing line on a terminal, otherwise a line every 10 s."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._status = Status("", console=console) if console.is_terminal else None
        self._next_print_at_s = 0.0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text.replace("[", r"\["))
        elif time.monotonic() >= self._next_print_at_s:
            self._next_print_at_s = time.monotonic() + PLAIN_INTERVAL_S
            print(text, file=sys.stderr, flush=True)
