"""Runs a gateway with a router in front of the servers of `bench serve --replicas`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.gateway.recording import recording
from harness.gateway.serving import tune_garbage_collector
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidInput
from servers.processes.supervised import first_failure
from servers.routing import NamedRouter
from servers.variants import one_router
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
