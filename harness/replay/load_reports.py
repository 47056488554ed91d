"""What routers know of live servers, and how loaded these are, from the pages at `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp

from harness.replay.http import authorization
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidInput
from servers.processes.metrics_page import server_load
from servers.routers.base import UNKNOWN_COSTS, Replica, Router
from servers.vllm.launch.server import cache_config

TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 1 << 24


def kv_tokens_of(base_url: str) -> int:
    """Return how many tokens the server's KV memory holds; 0 if it does not say."""
    from harness.replay.openai_client import fetch

    with suppress(OSError, LookupError, ValueError):
        cache = cache_config(fetch(f"{base_url}/metrics", TIMEOUT_S, MAX_PAGE_BYTES).decode())
        return max(0, int(cache["num_gpu_blocks"]) * int(cache["block_size"]))
    return 0


def replicas_of(servers: Sequence[LiveServer]) -> list[Replica]:
    return [
        Replica(index, server.kv_tokens, server.costs or UNKNOWN_COSTS)
        for index, server in enumerate(servers)
    ]


def check_known(router: Router, name: str, servers: Sequence[LiveServer]) -> None:
    """Raise InvalidInput if the router needs what a server does not report."""
    silent = next((server.root for server in servers if not server.kv_tokens), None)
    if silent and (router.needs_kv or router.report_s is not None):
        raise InvalidInput(
            f"--router {name}: needs the size of each server's KV memory, and {silent}/metrics "
            "has no vllm:cache_config_info; choose another router, such as sticky"
        )
    unmeasured = next((server.root for server in servers if server.costs is None), None)
    if unmeasured and router.needs_costs:
        raise InvalidInput(
            f"--router {name}: needs the times of prefills and decode steps, which {unmeasured} "
            "does not report; use it with bench sweep --engine vllm, or choose another router, "
            "such as thunderagent"
        )


class LoadReports:
    """The loads of several servers. An instance is the `report` of a `LiveRouter`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        servers: Sequence[LiveServer],
        api_key: str | None,
        now_s: Callable[[], float],
    ) -> None:
        self._session = session
        self._urls = [f"{server.root}/metrics" for server in servers]
        self._headers = authorization(api_key)
        self._now_s = now_s

    async def __call__(self, replica: Replica) -> None:
        """Update the replica; a server that does not answer leaves it as it was."""
        with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            load = server_load(await self._page(self._urls[replica.index]))
            if load is None:
                return
            replica.running, replica.waiting = load.running, load.waiting
            replica.used_tokens = round(load.kv_usage * replica.kv_tokens)
            replica.reported_s = self._now_s()

    async def _page(self, url: str) -> str:
        page = bytearray()
        async with (
            asyncio.timeout(TIMEOUT_S),
            self._session.get(url, headers=self._headers, allow_redirects=False) as answer,
        ):
            async for received in answer.content.iter_any():
                page += received
                if len(page) > MAX_PAGE_BYTES:
                    raise ValueError(f"the response from {url} exceeds {MAX_PAGE_BYTES} bytes")
        return page.decode()
