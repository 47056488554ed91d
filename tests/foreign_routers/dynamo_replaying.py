"""Replay programs through a real Dynamo, over mocker workers that take almost no time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.replay.dynamo import Frontend
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from servers.basics.errors import Unavailable
from servers.foreign_routers.dynamo import THUNDERAGENT, DynamoDeployment
from servers.foreign_routers.dynamo_process import DynamoCluster
from servers.foreign_routers.installation import find_installation
from servers.processes.environments import Installation
from servers.processes.server import launch
from servers.profiles import Profile, analytic_profile
from tests.lines import Line, into
from traces import Program

BLOCK = 16


def installation() -> Installation:
    """Return Dynamo, or skip the test."""
    try:
        return find_installation("dynamo")
    except Unavailable as error:
        pytest.skip(str(error))


def profile() -> Profile:
    """Return a machine on which each step takes a millisecond."""
    llama = analytic_profile("a100-80g", "llama-3.1-8b", kv_blocks=1000, block_tokens=BLOCK)
    return replace(llama, base_ps=10**9, weights_ps=0, token_ps=0, context_ps=0, pair_ps=0)


def deployment(prefill: int = 0, others: int = 2, *flags: str) -> DynamoDeployment:
    return DynamoDeployment("m", profile(), 256, 8192, prefill, others, 300.0, flags)


def launched(policy: str, deployed: DynamoDeployment, folder: Path) -> DynamoCluster:
    return launch(lambda: DynamoCluster(deployed, policy, installation(), folder), within_s=60)


def replayed(
    cluster: DynamoCluster, policy: str, programs: Sequence[Program], starts_s: Sequence[float]
) -> list[Line]:
    """Return the records of the turns, in the order in which they ended."""
    lines: list[Line] = []
    frontend = Frontend(
        cluster.workers,
        disaggregated=bool(cluster.deployment.prefill),
        block_tokens=BLOCK,
        has_sessions=policy == THUNDERAGENT,
    )
    asyncio.run(
        replay_live(
            programs,
            starts_s,
            None,
            Service([LiveServer(cluster.base_url, dynamo=frontend)], "m", range(256), seed=0),
            on_turn=into(lines),
        )
    )
    return lines
