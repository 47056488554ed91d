"""`bench profile` on a real vLLM writes a file that virtual time and a server's policy can read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from harness.replay.virtual import replay
from servers.policies.base import Costs
from servers.profiles.files import read_measured
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.server import VllmServer, launch
from tests.lines import Line, into
from tests.real.test_sweep import PROGRAMS

WITHIN = ("--within-s", "300")
"""A small pool and short contexts end the measurement earlier, unless the machine is busy."""
BENCH = str(Path(sys.executable).parent / "bench")
pytestmark = pytest.mark.usefixtures("forked_vllm")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    config = ServerConfig(kv_blocks=200, max_model_len=3000)
    with launch(config, tmp_path_factory.mktemp("server"), ready_within_s=600) as started:
        yield started


@pytest.fixture(scope="module")
def path(server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    result = subprocess.run(
        [BENCH, "profile", "--url", server.base_url, *WITHIN, "--out", "p.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "profile: p.json"
    return folder / "p.json"


def test_the_profile_describes_the_measured_server(server: VllmServer, path: Path) -> None:
    """How well the fits follow the measurements depends on what else the machine does."""
    found = read_measured(path)
    assert (found.model, found.engine) == ("tiny", f"vLLM {server.info.version}")
    assert (found.kv_blocks, found.block_tokens) == (200, 32)
    assert found.kv_bytes_per_token == 1024
    seconds = {p.tokens: median(p.seconds) for p in found.prefill}
    assert {32, 128, 512, 1024, 2048} <= seconds.keys()
    assert seconds[2048] > seconds[32] > 0
    # A busy client may send the last request of a larger batch when the first answer has ended.
    assert {d.batch for d in found.decode} >= {1, 2}
    assert max(d.batch * d.context for d in found.decode) < 199 * 32


def test_virtual_time_with_the_profile_has_the_magnitude_of_a_live_replay(
    server: VllmServer, path: Path
) -> None:
    """The tolerance is wide, as two cores are shared; it still finds a wrong unit."""
    profile = read_measured(path).profile()
    starts = [0.5 * k for k in range(len(PROGRAMS))]
    live: list[Line] = []
    virtual: list[Line] = []

    async def go() -> dict[str, Any]:
        return await replay_live(
            PROGRAMS,
            starts,
            None,
            Service(
                [LiveServer(server.base_url)],
                "tiny",
                range(*server.info.vocabulary),
                seed=1,
                turn_timeout_s=600.0,
            ),
            on_turn=into(live),
        )

    asyncio.run(go())
    policy = make_policy(variants("fcfs")[0], Costs(prefill_s=float))
    replay(PROGRAMS, starts, None, partial(Engine, policy, profile, Limits()), into(virtual))

    def served_s(lines: list[Line]) -> float:
        seconds: float = mean(line["finished_at_s"] - line["sent_at_s"] for line in lines)
        return seconds

    assert not any(line["error"] for line in live)
    assert 0.05 < served_s(virtual) / served_s(live) < 20


def test_bench_profile_starts_and_ends_a_server_if_no_url_is_given(tmp_path: Path) -> None:
    result = subprocess.run(
        [BENCH, "profile", *WITHIN, "--kv-blocks", "100", "--max-model-len", "3000"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = read_measured(tmp_path / "tiny-profile.json")
    assert (found.kv_blocks, found.max_model_len) == (100, 3000)
    assert found.machine.startswith(("cpu", "NVIDIA"))
    (log,) = tmp_path.glob("runs/profile/*/server.log")
    assert "vLLM" in log.read_text()
