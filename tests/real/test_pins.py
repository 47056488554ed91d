"""Pins in a real vLLM, as its KV usage metric shows them: kept through tool gaps, released when
their program ends, and none left by an aborted turn."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest

from harness.calibrate.verify_pins import (
    EXPENSIVE_COSTS,
    EXPENSIVE_PREFILL,
    expected_blocks,
    kv_usage,
    measure_gaps,
)
from harness.gateway import Gateway, serve_gateway
from harness.gateway.recording import backends
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from servers.variants import make_policy, variants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.server import VllmServer, launch
from tests.lines import Line, into
from traces import Program, Turn

pytestmark = pytest.mark.usefixtures("forked_vllm")
GAP_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    config = ServerConfig(policy="continuum-preview", costs=EXPENSIVE_PREFILL, kv_blocks=500)
    with pytest.MonkeyPatch.context() as patch:
        # Some kernels do not run a client for seconds that shares its core with a bound thread.
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        with launch(config, tmp_path_factory.mktemp("pins"), ready_within_s=300) as running:
            yield running


def metrics(server: VllmServer) -> str:
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=10) as answer:  # noqa: S310
        page: bytes = answer.read()
    return page.decode()


def running(page: str) -> float:
    found = re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def wait_until_free(server: VllmServer) -> None:
    deadline_s = time.monotonic() + 60
    while kv_usage(page := metrics(server)) > 0 or running(page) > 0:
        assert time.monotonic() < deadline_s, page
        time.sleep(0.1)


def replayed(server: VllmServer, program: Program, turn_timeout_s: float = 60.0) -> list[Line]:
    lines: list[Line] = []
    asyncio.run(
        replay_live(
            [program],
            [0.0],
            None,
            Service(
                [LiveServer(server.base_url, server.events_path)],
                "tiny",
                range(256),
                seed=3,
                turn_timeout_s=turn_timeout_s,
            ),
            on_turn=into(lines),
        )
    )
    return lines


def test_the_table_of_the_execution_note_holds_with_blocks_of_32(server: VllmServer) -> None:
    """Execution note, §4.2: 72, 139, 290, 404 tokens are pinned, with their partial block."""
    policy = make_policy(variants("continuum-preview")[0], EXPENSIVE_COSTS)
    expected = expected_blocks(policy, GAP_S, 32, 500)
    gaps = measure_gaps(
        server.info, LiveServer(server.base_url, server.events_path), expected, GAP_S
    )
    assert [gap.held_tokens for gap in gaps] == [72, 139, 290, 404, 509]
    assert [gap.min_blocks for gap in gaps] == [3, 5, 10, 13, 0]
    assert [gap.max_blocks for gap in gaps] == [3, 5, 10, 13, 0]
    assert [gap.next_hit_tokens for gap in gaps] == [64, 128, 288, 384, None]  # whole blocks
    assert all(gap.good for gap in gaps)


def test_a_turn_that_times_out_leaves_no_pin(server: VllmServer) -> None:
    turns = (Turn(100, 5, 0, ("ls",), None, 0.2), Turn(200, 4000, 105, ("ls",)), Turn(4300, 5))
    first, second = replayed(server, Program("slow", turns), turn_timeout_s=2.0)
    assert first["error"] is None
    assert "turn timeout of 2 s" in second["error"]
    assert second["pinned_hit"]
    wait_until_free(server)


def test_a_client_that_disconnects_leaves_no_pin(server: VllmServer) -> None:
    async def leave() -> None:
        body = {
            "model": "tiny",
            "prompt": [7] * 300,
            "max_tokens": 4000,
            "ignore_eos": True,
            "stream": True,
            "vllm_xargs": {"program_id": "gone", "turn": 0, "tools": "ls"},
        }
        async with aiohttp.ClientSession() as session:
            url = f"{server.base_url}/v1/completions"
            async with session.post(url, json=body) as answer:
                await answer.content.readany()
                assert running(await asyncio.to_thread(metrics, server)) == 1

    asyncio.run(leave())
    wait_until_free(server)


def test_a_program_that_ends_without_a_last_turn_leaves_no_pin(server: VllmServer) -> None:
    """The gateway cannot know which turn is the last, but is notified of the program's end."""
    lines: list[Line] = []
    body: dict[str, object] = {"model": "tiny", "prompt": [7] * 300, "max_tokens": 5}
    body["vllm_xargs"] = {"tools": "ls"}
    servers = backends([server.base_url])

    async def agent() -> None:
        gateway = Gateway(servers, into(lines))
        async with serve_gateway(gateway) as url, aiohttp.ClientSession() as session:
            program = f"{url}/programs/agent"
            async with session.post(f"{program}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
            assert kv_usage(await asyncio.to_thread(metrics, server)) > 0
            async with session.delete(program) as answer:
                assert answer.status == 204

    asyncio.run(agent())
    assert (lines[0]["prompt_tokens"], lines[0]["output_tokens"], lines[0]["error"]) == (
        300,
        5,
        None,
    )
    wait_until_free(server)
