"""Routers of other projects in front of the servers of `--engine vllm`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.load.settings import Agents, SweepSettings
from harness.replay.live import Replica
from servers.errors import CellFailed, InvalidInput, RouterFailed
from servers.foreign_routers.installation import RouterInstallation, find_installation
from servers.foreign_routers.process import RouterProcess, launch_router
from servers.foreign_routers.vllm_router import Deployment
from servers.routing import ForeignRouter
from servers.variants import Variant
from servers.vllm.launch.cost_curve import CostCurve


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
            if router.project not in installed:
                installed[router.project] = find_installation(router.package)
            version = installed[router.project].version
            variant = replace(variant, router=replace(router, version=version))
        found.append(variant)
    return tuple(found), installed


def start_router(
    router: ForeignRouter,
    installation: RouterInstallation,
    replicas: Sequence[Replica],
    costs: CostCurve,
    turn_timeout_s: float,
    log: Path,
    stack: ExitStack,
) -> tuple[Replica, RouterProcess]:
    """Start the router until the stack is closed, and return the server that it is for clients.

    Raises CellFailed.
    """
    urls = tuple(replica.root for replica in replicas)
    deployment = Deployment(urls, replicas[0].kv_tokens, costs, turn_timeout_s)
    try:
        process = launch_router(router, installation, deployment, log)
    except RouterFailed as failed:
        raise CellFailed(str(failed)) from None
    stack.enter_context(process)
    return Replica(process.base_url, behind=tuple(replicas)), process
