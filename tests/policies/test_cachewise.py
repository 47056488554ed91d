"""CacheWise's order of eviction and of waiting turns."""

from __future__ import annotations

import math

import pytest
from policy_turns import COSTS, held, order, run, tool_call, turn

from servers.policies.base import Pin
from servers.policies.cachewise import CacheWise
from servers.policies.estimates.remaining_times import WINDOW, RemainingTimes


def kept(policy: CacheWise, program: str, tool: str, since: float, tokens: int = 1000) -> Pin:
    request = turn(program, tools=(tool,), tokens=tokens)
    run(policy, request, start=since - 1, end=since)
    made = held(request, since=since, until=math.inf)
    policy.pinned(made, since)
    return made


def evicted(policy: CacheWise, pins: list[Pin], now: float) -> list[str]:
    return [p.program_id for p in policy.reclaim(pins, turn("z"), now)]


@pytest.fixture
def policy() -> CacheWise:
    """The policy after calls of 1 and 9 s of pytest, and of 2 s of ls."""
    policy = CacheWise(COSTS)
    for number, (tool, seconds) in enumerate((("pytest", 1.0), ("pytest", 9.0), ("ls", 2.0))):
        tool_call(policy, f"past{number}", tool, seconds)
    return policy


def test_the_expected_remaining_time_is_the_mean_excess_of_longer_samples() -> None:
    times = RemainingTimes()
    for seconds in (1.0, 9.0, 5.0, 3.0):
        times.add(seconds)
    # Of 1, 3, 5 and 9 s: all, then 5 and 9 s, then 9 s, then none are longer.
    assert [times.after_s(t) for t in (0.0, 3.0, 8.0, 9.0)] == [4.5, 4.0, 1.0, None]
    assert RemainingTimes().after_s(0.0) is None


def test_only_the_latest_samples_count() -> None:
    times = RemainingTimes()
    times.add(1e6)
    for _ in range(WINDOW):
        times.add(2.0)
    assert (len(times), times.after_s(0.0)) == (WINDOW, 2.0)


def test_the_program_that_is_expected_back_last_is_evicted_first(policy: CacheWise) -> None:
    pins = [kept(policy, "ls", "ls", 20.0), kept(policy, "pytest", "pytest", 20.0)]
    # At once: 2 s of ls, (1 + 9) / 2 s of pytest.
    assert [policy.reuse_in_s(p, 20.0) for p in pins] == [2.0, 5.0]
    assert evicted(policy, pins, 20.0) == ["pytest", "ls"]


def test_the_time_since_the_call_changes_the_prediction(policy: CacheWise) -> None:
    pins = [kept(policy, "old", "pytest", 20.0), kept(policy, "new", "pytest", 27.5)]
    # After 8.5 s only the 9 s call is longer, after 1 s too: 0.5 and 8 s remain.
    assert [policy.reuse_in_s(p, 28.5) for p in pins] == [0.5, 8.0]
    assert evicted(policy, pins, 28.5) == ["new", "old"]


def test_an_unknown_tool_is_judged_by_all_calls_and_a_longer_call_ends_now(
    policy: CacheWise,
) -> None:
    unknown, late = kept(policy, "unknown", "make", 20.0), kept(policy, "late", "ls", 17.0)
    # Of 1, 2 and 9 s of all tools the mean is 4 s; after 3 s of ls only 9 s of pytest is longer.
    assert [policy.reuse_in_s(p, 20.0) for p in (unknown, late)] == [4.0, 6.0]
    assert policy.reuse_in_s(unknown, 29.0) == 0.0


def test_the_context_of_a_turn_that_is_back_is_evicted_last(policy: CacheWise) -> None:
    pins = [kept(policy, "pytest", "pytest", 20.0), kept(policy, "ls", "ls", 20.0)]
    back = turn("pytest", index=1, at=21.0, pinned=True)
    policy.arrived(back, 21.0)
    assert evicted(policy, pins, 21.0) == ["ls", "pytest"]
    policy.aborted(back, 21.5)
    assert evicted(policy, pins, 21.5) == ["pytest", "ls"]


def test_the_turn_that_needs_the_least_memory_goes_first(policy: CacheWise) -> None:
    kept(policy, "kept", "ls", 20.0, tokens=8000)
    waiting = [
        turn("long", at=1.0, tokens=3000),
        turn("short", at=3.0, tokens=1500),
        turn("same", at=2.0, tokens=1500),
        turn("kept", index=1, at=21.0, tokens=9000, pinned=True),
    ]
    assert order(policy, waiting, 22.0) == ["kept", "same", "short", "long"]


def test_a_turn_whose_context_was_evicted_needs_its_whole_prompt(policy: CacheWise) -> None:
    lost = kept(policy, "lost", "ls", 20.0, tokens=8000)
    policy.unpinned(lost, 21.0)
    waiting = [
        turn("lost", index=1, at=21.0, tokens=9000),
        turn("new", at=22.0, tokens=2000),
    ]
    assert order(policy, waiting, 22.0) == ["new", "lost"]


def test_kv_is_kept_until_memory_is_needed_except_of_last_turns() -> None:
    policy = CacheWise(COSTS)
    assert run(policy, turn(), start=0.0, end=1.0).ttl_s == math.inf
    assert run(policy, turn(last=True), start=0.0, end=1.0).kind == "free"
    assert policy.reclaim_when == "pressure"
