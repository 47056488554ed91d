"""Each limit of a program is checked independently."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from agents.sandbox.bubblewrap import Bubblewrap, SandboxLimits
from harness.live_agents import launch as agent_limits
from harness.live_agents.launch import ProgramLimits


@pytest.mark.parametrize(
    ("limit_s", "memory_bytes", "exceeded"),
    [(0.1, 1 << 40, "0.1 s"), (600, 1 << 20, "0.000976562 GiB of memory")],
)
def test_time_and_memory_are_limited_while_files_are_counted(
    limit_s: float,
    memory_bytes: int,
    exceeded: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may create so many files that counting them takes minutes."""
    counted = threading.Event()

    def count(*_: object) -> int:
        counted.wait(60)
        return 0

    monkeypatch.setattr(agent_limits, "program_usage", count)
    limits = ProgramLimits(limit_s, Bubblewrap(SandboxLimits(memory_bytes=memory_bytes)), 1)
    try:
        first = asyncio.run(asyncio.wait_for(limits.exceeded(os.getpid(), tmp_path, 0.0), 30))
    finally:
        counted.set()
        limits.close()
    assert first == exceeded


def test_the_files_of_different_programs_are_counted_concurrently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def count(*_: object) -> int:
        both.wait(60)
        return 1 << 40

    monkeypatch.setattr(agent_limits, "program_usage", count)
    limits = ProgramLimits(600, Bubblewrap(SandboxLimits(memory_bytes=1 << 60)), 2)

    async def run() -> list[str]:
        return await asyncio.gather(
            *(limits.exceeded(os.getpid(), tmp_path, 0.0) for _ in range(2))
        )

    try:
        assert asyncio.run(run()) == ["10 GiB of files"] * 2
    finally:
        limits.close()
