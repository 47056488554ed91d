"""Stalls of the client machine are told apart from a client that is too slow."""

from __future__ import annotations

import asyncio
import time

import pytest

from harness.engines.live_engine import BEAT_S, record_stalls


def stalls_while_blocked(blocked_s: float) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Return the stalls of a loop that is blocked once, and when that was."""

    async def block() -> tuple[float, float]:
        found: list[tuple[float, float]] = []
        heartbeat = asyncio.create_task(record_stalls(found))
        await asyncio.sleep(BEAT_S / 2)
        began_s = asyncio.get_running_loop().time()
        time.sleep(blocked_s)
        ended_s = asyncio.get_running_loop().time()
        await asyncio.sleep(2 * BEAT_S)
        heartbeat.cancel()
        return found, (began_s, ended_s)

    found, blocked = asyncio.run(block())
    return found, blocked


def test_a_loop_that_gets_no_cpu_has_a_stall() -> None:
    found, (began_s, ended_s) = stalls_while_blocked(0.4)
    assert [stall for stall in found if stall[0] <= began_s and stall[1] >= ended_s]


def test_a_loop_that_is_busy_has_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread uses the CPU all the time, which only a clock shows for certain on a busy
    machine."""
    monkeypatch.setattr(time, "thread_time", time.monotonic)
    assert stalls_while_blocked(0.4)[0] == []
