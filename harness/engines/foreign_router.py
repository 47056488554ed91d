"""Routers of other projects in front of the servers of `--engine vllm` and `--engine sglang`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from harness.cells.job import Job
from harness.load.settings import Agents, Prompts, SweepSettings
from harness.replay.identity import RELEASE_PROGRAM
from harness.replay.live_server import LiveServer
from servers.basics.errors import InvalidInput
from servers.foreign_routers.installation import Deployment, find_installation
from servers.foreign_routers.process import RouterProcess, launch_router
from servers.processes.environments import Installation
from servers.routing import ForeignRouter
from servers.variants import Variant
from servers.vllm.plugin.cost_curve import CostCurve

TEXT_ONLY = ("sglang-router", "thunderagent-org")
"""Routers that refuse prompts of token ids."""
SESSION_ENDS = {"thunderagent-org": (RELEASE_PROGRAM,)}
"""How a router learns that a program has ended."""


def find_routers(
    chosen: Sequence[Variant], settings: SweepSettings
) -> tuple[tuple[Variant, ...], dict[str, Installation]]:
    """Return the variants with the versions of their routers, and where each project is installed.

    Raises InvalidInput.
    """
    installed: dict[str, Installation] = {}
    found = []
    for variant in chosen:
        router = variant.router
        if isinstance(router, ForeignRouter):
            if settings.agents != Agents():
                raise InvalidInput(
                    f"--router {router.name}: only replays traces; remove "
                    f"{settings.agents.flag}, or use one of our routers (bench list routers)"
                )
            if router.project in TEXT_ONLY and not _passes_prompts(router, settings):
                raise InvalidInput(
                    f"--router {router.name}: refuses prompts of token ids; add --prompts text "
                    "(with a trace that has messages), or use vllm-router"
                )
            if router.project not in installed:
                installed[router.project] = find_installation(router.project)
            version = installed[router.project].version
            variant = replace(variant, router=replace(router, version=version))
        found.append(variant)
    return tuple(found), installed


def _passes_prompts(router: ForeignRouter, settings: SweepSettings) -> bool:
    """Return whether the router passes the prompts on. To SGLang's own API, sglang-router also
    passes token ids."""
    native = router.project == "sglang-router" and settings.machine.engine == "sglang"
    return native or settings.server.prompts is Prompts.TEXT


def behind_router(
    job: Job,
    installed: Mapping[str, Installation],
    servers: Sequence[LiveServer],
    costs: CostCurve | None,
    turn_timeout_s: float,
    stack: ExitStack,
) -> tuple[Sequence[LiveServer], Sequence[RouterProcess]]:
    """Return the servers to which the harness sends turns, and the processes of ours among them.

    If the job's variant has a router of another project, that is the only one: it is started in
    front of the servers, until the stack is closed. Raises ServerFailed.
    """
    router = job.variant.router
    if not isinstance(router, ForeignRouter):
        return servers, ()
    job.on_stage(f"starting {router.project}")
    urls = tuple(server.root for server in servers)
    deployment = Deployment(urls, servers[0].kv_tokens, costs, turn_timeout_s)
    log = job.folder / "server" / "router.log"
    process = launch_router(router, installed[router.project], deployment, log)
    stack.enter_context(process)
    apis = servers[0].apis
    if router.project == "sglang-router":
        apis = apis._replace(text=apis.plain)
    ends = SESSION_ENDS.get(router.project, ())
    target = LiveServer(process.base_url, session_ends=ends, behind=tuple(servers), apis=apis)
    return [target], [process]
