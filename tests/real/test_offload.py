"""Offload tiers on a real vLLM: KV that was evicted from the device is reloaded, and is correct."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from servers.processes.supervisor import descendants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.offload_tier import OffloadTier
from servers.vllm.launch.server import VllmServer, launch
from tests.lines import Line, into
from tests.processes import wait_until
from tests.real.conftest import forked
from traces import Program, Turn

READY_WITHIN_S = 300.0
POOL_BLOCKS = 50
"""Blocks of 32 tokens: enough for one context of 1,200 tokens, but not for two."""
TIERS = {
    # Memory for one of the prompts below; the others are on disk.
    "lmcache, disk": OffloadTier("lmcache", dram_gb=0.002, ssd_gb=1),
    "native": OffloadTier("native", dram_gb=0.5),
}


@pytest.fixture(scope="module", params=TIERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    config = ServerConfig(policy="infercept", kv_blocks=POOL_BLOCKS, offload=TIERS[request.param])
    folder = tmp_path_factory.mktemp("offload")
    # The worker of a forked vLLM does not start with LMCache.
    with forked() if request.param == "native" else nullcontext():
        server = launch(config, folder, ready_within_s=READY_WITHIN_S)
    with server as running:
        yield running


def ask(server: VllmServer, prompt: list[int]) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 24,
        "min_tokens": 24,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
    }
    request = urllib.request.Request(  # noqa: S310
        f"{server.base_url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        content: dict[str, Any] = json.load(answer)
    return content


def prompt(seed: int) -> list[int]:
    return [(seed * 7919 + k * k * 31 + k) % 256 for k in range(1200)]


def test_reloaded_kv_gives_the_same_answer_as_computed_kv(server: VllmServer) -> None:
    computed = ask(server, prompt(1))["choices"][0]["token_ids"]
    for other in range(2, 7):  # 38 blocks each, so that the first prompt is evicted
        assert ask(server, prompt(other))["choices"][0]["token_ids"] != computed
    before = server.external_hit_tokens()
    reloaded = ask(server, prompt(1))
    assert server.external_hit_tokens() - before >= 1024  # four chunks of 256
    assert reloaded["choices"][0]["token_ids"] == computed


def test_a_contended_workload_hits_the_offload_tier(server: VllmServer) -> None:
    programs = [
        Program(
            f"job-{k}",
            (
                Turn(500, 20, 0, ("ls",), None, 0.3),
                Turn(900, 20, 520, ("ls",), None, 0.3),
                Turn(1200, 20, 920),
            ),
        )
        for k in range(5)
    ]
    lines: list[Line] = []
    before = server.external_hit_tokens()
    done = asyncio.run(
        replay_live(
            programs,
            [0.2 * k for k in range(5)],
            None,
            Service(
                [LiveServer(server.base_url, server.events_path)],
                "tiny",
                range(256),
                seed=1,
                turn_timeout_s=120.0,
            ),
            on_turn=into(lines),
        )
    )
    assert (done.finished_programs, done.failed_turns) == (5, 0)
    from_tier = sum(line["dram_hit_tokens"] for line in lines)
    # vLLM also counts hits after a preemption.
    assert 0 < from_tier <= server.external_hit_tokens() - before
    for line in lines:
        parts = [line[f"{part}_s"] for part in ("queue", "load", "prefill", "decode", "preempted")]
        assert sum(parts) == pytest.approx(line["finished_at_s"] - line["sent_at_s"])
        assert line["load_s"] > 0 or not line["dram_hit_tokens"]


@pytest.mark.parametrize("server", ["lmcache, disk"], indirect=True, scope="module")
def test_a_killed_lmcache_is_a_failure_and_leaves_no_process_or_file(server: VllmServer) -> None:
    """The last test of this server, which ends."""
    assert server._tier is not None
    groups = [server.pid, server._tier.pid]
    assert all(_alive(group) for group in groups)
    assert server.failure() is None
    assert (server.folder / "lmcache-disk").exists()
    for process in descendants(groups[1]):
        os.kill(process, signal.SIGKILL)
    wait_until(server.failure)
    lost = "vLLM lost its offload tier: LMCache was ended by signal 9 (out of memory?): "
    assert str(server.failure()).startswith(lost)
    server.stop()
    assert not any(_alive(group) for group in groups)
    assert not (server.folder / "lmcache-disk").exists()


def _alive(group: int) -> bool:
    stats = (path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists())
    return any(int(stat.rpartition(")")[2].split()[2]) == group for stat in stats)
