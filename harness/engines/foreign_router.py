"""Routers of other projects in front of the servers of `--engine vllm` and `--engine sglang`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.load.settings import Agents, Prompts, SweepSettings
from harness.replay.api import WITHOUT_CHAT
from harness.replay.identity import RELEASE_PROGRAM
from harness.replay.live_server import LiveServer
from servers.basics.errors import CellFailed, InvalidInput, ServerFailed
from servers.foreign_routers.deployment import Deployment
from servers.foreign_routers.installation import RouterInstallation, find_installation
from servers.foreign_routers.process import RouterProcess, launch_router
from servers.routing import ForeignRouter
from servers.variants import Variant
from servers.vllm.launch.cost_curve import CostCurve

TEXT_ONLY = ("sglang-router", "thunderagent-org")
"""Routers that refuse prompts of token ids."""
SESSION_ENDS = {"thunderagent-org": (RELEASE_PROGRAM,)}
"""How routers are told that a program has ended."""


def find_routers(
    chosen: Sequence[Variant], settings: SweepSettings
) -> tuple[tuple[Variant, ...], dict[str, RouterInstallation]]:
    """Return the variants with the versions of their routers, and where each project is installed.

    Raises InvalidInput.
    """
    installed: dict[str, RouterInstallation] = {}
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
                installed[router.project] = find_installation(router.package)
            version = installed[router.project].version
            variant = replace(variant, router=replace(router, version=version))
        found.append(variant)
    return tuple(found), installed


def _passes_prompts(router: ForeignRouter, settings: SweepSettings) -> bool:
    """Return whether the router passes the prompts on. To SGLang's own API, sglang-router also
    passes token ids."""
    native = router.project == "sglang-router" and settings.machine.engine == "sglang"
    return native or settings.server.prompts is Prompts.TEXT


def start_router(
    router: ForeignRouter,
    installation: RouterInstallation,
    replicas: Sequence[LiveServer],
    costs: CostCurve | None,
    turn_timeout_s: float,
    log: Path,
    stack: ExitStack,
) -> tuple[LiveServer, RouterProcess]:
    """Start the router until the stack is closed, and return the server that it is for clients.

    Raises CellFailed.
    """
    urls = tuple(replica.root for replica in replicas)
    deployment = Deployment(urls, replicas[0].kv_tokens, costs, turn_timeout_s)
    try:
        process = launch_router(router, installation, deployment, log)
    except ServerFailed as failed:
        raise CellFailed(str(failed)) from None
    stack.enter_context(process)
    apis = replicas[0].apis
    if router.project == "sglang-router":
        apis = apis._replace(text=WITHOUT_CHAT.text)
    ends = SESSION_ENDS.get(router.project, ())
    target = LiveServer(process.base_url, session_ends=ends, behind=tuple(replicas), apis=apis)
    return target, process
