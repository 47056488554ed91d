"""Measure the live client at 500 concurrent programs: lateness of its requests, CPU time per turn.

The server is a separate trivial process: answers of 24 tokens in 8 chunks, 20 ms apart. Every
program has one running turn or a tool gap of 1.5 s, so that about 300 turns/s are sent.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from tests.lines import into
from traces import Program, Turn

PROGRAMS, TURNS, GAP_S = 500, 5, 1.5


def programs(count: int, turn_count: int, prompt_tokens: int) -> list[Program]:
    """Return programs whose contexts begin with `prompt_tokens` and grow by 200 per turn."""
    all_programs = []
    for i in range(count):
        turns = [
            Turn(
                prompt_tokens + 200 * n,
                24,
                (prompt_tokens + 200 * n - 176) * (n > 0),
                (),
                None,
                GAP_S,
            )
            for n in range(turn_count)
        ]
        all_programs.append(Program(f"p{i}", tuple(turns)))
    return all_programs


@pytest.mark.parametrize("prompt_tokens", [1000, 10_000])
def test_lateness_and_cpu_at_500_programs(prompt_tokens: int, benchmark: Any) -> None:
    """If nothing is timed, there are 10 programs of 2 turns."""
    count, turn_count = (PROGRAMS, TURNS) if benchmark.enabled else (10, 2)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.live.server"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    lines: list[Any] = []
    spent_s: list[float] = []

    def replay() -> None:
        lines.clear()
        started_s = time.process_time()
        starts_s = [GAP_S * i / count for i in range(count)]
        asyncio.run(
            replay_live(
                programs(count, turn_count, prompt_tokens),
                starts_s,
                None,
                Service([LiveServer(url)], "m", range(1000, 100_000), seed=0),
                on_turn=into(lines),
            )
        )
        spent_s.append(time.process_time() - started_s)

    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        benchmark.pedantic(replay, rounds=1)
    finally:
        server.terminate()
        server.wait(timeout=10)
        if server.stdout is not None:
            server.stdout.close()
    assert {line["error"] for line in lines} == {None}
    assert len(lines) == count * turn_count
    late_s = [line["sent_at_s"] - line["scheduled_at_s"] for line in lines]
    benchmark.extra_info["lateness_p50_ms"] = round(1e3 * float(np.percentile(late_s, 50)), 2)
    benchmark.extra_info["lateness_p99_ms"] = round(1e3 * float(np.percentile(late_s, 99)), 2)
    benchmark.extra_info["cpu_ms_per_turn"] = round(1e3 * spent_s[-1] / len(lines), 3)
