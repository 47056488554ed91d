"""Replay programs through a real router of another project, in front of `tests.live.server`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from harness.replay.identity import SessionEnd
from harness.replay.live import replay_live
from harness.replay.live_server import OPENAI, Apis, LiveServer, Service
from servers.basics.errors import Unavailable
from servers.foreign_routers.installation import Deployment, find_installation
from servers.foreign_routers.process import RouterProcess, launch_router
from servers.processes.environments import Installation
from servers.processes.port import request
from servers.routing import ForeignRouter
from servers.vllm.launch.cost_curve import TINY_ON_CPU
from tests.lines import Line, into
from tests.live.server import Server, serving
from traces import Program


@dataclass
class LoggedServer(Server):
    """A server that writes the arrival of each turn to an event file, as our plug-in does."""

    events: Path | None = None

    async def completions(self, http_request: web.Request) -> web.StreamResponse:
        self._log(orjson.loads(await http_request.read())["vllm_xargs"])
        return await super().completions(http_request)

    async def chat(self, http_request: web.Request) -> web.StreamResponse:
        tags = orjson.loads(await http_request.read())["vllm_xargs"]
        self._log(tags)
        self.prompts[tags["program_id"], tags["turn"]] = []
        return await super().chat(http_request)

    def _log(self, tags: dict[str, Any]) -> None:
        if self.events is not None and "ended" not in tags:
            event = {"t": asyncio.get_running_loop().time(), "event": "arrival"}
            event |= {"program_id": tags["program_id"], "turn": tags["turn"]}
            with self.events.open("ab") as file:
                file.write(orjson.dumps(event) + b"\n")


@dataclass
class Replayed:
    servers: list[LoggedServer]
    lines: list[Line] = field(default_factory=list)
    """Records of the turns, in the order in which they ended."""
    diagnostics: Any = None
    """What the router says of its programs at the end, under program scheduling."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The router's metrics at the end, by name and labels as they are printed."""

    def served(self, program_id: str) -> list[int]:
        """Return the servers that got the turns of a program, in order."""
        turns = sorted(turn for server in self.servers for turn in server.prompts)
        return [
            next(k for k, server in enumerate(self.servers) if turn in server.prompts)
            for turn in turns
            if turn[0] == program_id
        ]


def installation(project: str = "vllm-router") -> Installation:
    """Return a router that is installed, or skip the test."""
    try:
        return find_installation(project)
    except Unavailable as error:
        pytest.skip(str(error))


def deployment(*urls: str, kv_tokens: int = 4096) -> Deployment:
    return Deployment(urls, kv_tokens, TINY_ON_CPU, turn_timeout_s=30.0)


def replayed(
    policy: str,
    programs: Sequence[Program],
    folder: Path,
    *,
    replicas: int = 2,
    starts_s: Sequence[float] | None = None,
    kv_tokens: int = 4096,
    think_s: float = 0.0,
    project: str = "vllm-router",
    text: bool = False,
    apis: Apis = OPENAI,
    ends: tuple[SessionEnd, ...] = (),
) -> Replayed:
    """Replay all programs, by default all from the start, and stop the router."""
    found = installation(project)
    events = [folder / f"events-{k}.jsonl" for k in range(replicas)]
    for path in events:
        path.touch()
    done = Replayed([LoggedServer(think_s=think_s, events=path) for path in events])

    async def replay() -> None:
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(each)) for each in done.servers]
            deployed = deployment(*urls, kv_tokens=kv_tokens)
            router = ForeignRouter(project, policy)
            log = folder / "router.log"
            process = await asyncio.to_thread(launch_router, router, found, deployed, log)
            stack.push_async_callback(asyncio.to_thread, process.stop)
            behind = tuple(LiveServer(url, path) for url, path in zip(urls, events, strict=True))
            await replay_live(
                programs,
                [0.0] * len(programs) if starts_s is None else starts_s,
                None,
                Service(
                    [LiveServer(process.base_url, session_ends=ends, behind=behind, apis=apis)],
                    "m",
                    range(2**31),
                    seed=0,
                    text=text,
                ),
                on_turn=into(done.lines),
            )
            if project == "sglang-router":
                done.metrics = await asyncio.to_thread(metrics, process)
            if policy == "program_scheduling":
                done.diagnostics = await asyncio.to_thread(diagnostics, process)

    asyncio.run(replay())
    return done


def metrics(process: RouterProcess) -> dict[str, float]:
    lines = request(process.metrics_port, "/metrics")[1].decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def diagnostics(process: RouterProcess) -> Any:
    port = int(process.base_url.rpartition(":")[2])
    return json.loads(request(port, "/scheduling/diagnostics")[1])
