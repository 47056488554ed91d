"""MORI's queues, on a device of 10,000 tokens with 20,000 tokens of DRAM and a tick every 5 s."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from policy_turns import TIERED, held, order, turn

from servers.basics.errors import InvalidPlugin
from servers.policies.base import Pin, Request
from servers.policies.mori import CPU, GPU, WAITING, Mori
from servers.variants import variant


@pytest.fixture
def policy() -> Mori:
    return Mori(replace(TIERED, kv_tokens=10_000))


def arrives(policy: Mori, program: str, at: float, tokens: int) -> Request:
    request = turn(program, at=at, tokens=tokens)
    policy.arrived(request, at)
    return request


def runs(policy: Mori, program: str, start: float, end: float, tokens: int) -> Pin:
    """Run a turn; return the pin that would hold its context."""
    request = arrives(policy, program, start, tokens)
    policy.scheduled(request, start, 0)
    policy.finished(request, end)
    return held(request, since=end, until=math.inf)


def queue(policy: Mori, program: str) -> int:
    return policy._programs[program].queue


def idleness(policy: Mori, program: str, now: float) -> float:
    return policy._programs[program].idleness(now)


def test_idleness_is_the_share_of_tool_time_of_the_latest_five_cycles(policy: Mori) -> None:
    runs(policy, "p", 0.0, 2.0, 100)
    assert idleness(policy, "p", 2.0) == 0.0
    # A tool that still runs counts with its time so far: 6 of 8 s.
    assert idleness(policy, "p", 8.0) == 0.75
    runs(policy, "p", 8.0, 10.0, 100)
    assert idleness(policy, "p", 10.0) == 0.6
    for number in range(5):
        runs(policy, "p", 11.0 + 2 * number, 12.0 + 2 * number, 100)
    # Five turns of 1 s; of the tools, four of 1 s and the present one of 96 s.
    assert idleness(policy, "p", 116.0) == pytest.approx(100 / 105)


def test_waiting_for_the_scheduler_counts_as_neither(policy: Mori) -> None:
    runs(policy, "p", 0.0, 2.0, 100)
    request = arrives(policy, "p", 4.0, 200)
    policy.scheduled(request, 50.0, 0)
    policy.finished(request, 52.0)
    # 2 + 2 s reasoning, 2 s acting.
    assert idleness(policy, "p", 52.0) == pytest.approx(2 / 6)


def test_the_most_idle_acting_program_moves_out_at_the_tick_and_loses_its_pin(
    policy: Mori,
) -> None:
    idle = runs(policy, "idle", 0.0, 1.0, 4000)
    busy = runs(policy, "busy", 10.0, 19.0, 4000)
    assert list(policy.review([idle, busy], 0, 19.0)) == []
    arrives(policy, "busy", 20.5, 8000)
    assert policy.wake_s(20.5) == 25.0
    assert list(policy.review([idle, busy], 0, 24.9)) == []
    assert list(policy.review([idle, busy], 0, 25.0)) == [idle]
    assert (queue(policy, "idle"), queue(policy, "busy")) == (CPU, GPU)
    assert policy.wake_s(25.0) is None


def test_a_reasoning_program_moves_out_at_the_end_of_its_turn(policy: Mori) -> None:
    first, second = arrives(policy, "a", 0.0, 6000), arrives(policy, "b", 0.5, 4000)
    for request in (first, second):
        policy.scheduled(request, 0.5, 0)
    third = arrives(policy, "b", 1.0, 9000)
    policy.review([], 0, 5.0)
    assert [queue(policy, p) for p in "ab"] == [GPU, GPU]
    # The program that arrived last leaves first of equally idle ones; `b` has another turn.
    assert policy.finished(second, 6.0).kind == "pin"
    policy.scheduled(third, 6.0, 0)
    assert policy.finished(third, 7.0).kind == "free"
    assert [queue(policy, p) for p in "ab"] == [GPU, CPU]


def test_a_program_for_which_dram_has_no_room_drops_its_kv() -> None:
    policy = Mori(replace(TIERED, kv_tokens=10_000), dram_ratio=0.1)
    runs(policy, "idle", 0.0, 1.0, 4000)
    arrives(policy, "busy", 2.0, 6000)
    arrives(policy, "busy", 3.0, 8000)
    policy.review([], 0, 5.0)
    assert queue(policy, "idle") == WAITING


def test_a_new_program_joins_at_once_if_it_fits_and_none_is_held_back(policy: Mori) -> None:
    fits, large, small = (
        arrives(policy, p, at, n) for p, at, n in (("a", 0, 6000), ("b", 1, 5000), ("c", 2, 1000))
    )
    assert [policy.admit(r, 9999, 2.0) for r in (fits, large, small)] == ["run", "stop", "stop"]
    assert order(policy, [small, large, fits], 2.0) == ["a", "b", "c"]
    # At the tick those that fit move in, smallest context first.
    assert [policy.admit(r, 9999, 5.0) for r in (fits, large, small)] == ["run", "stop", "run"]
    assert order(policy, [small, large, fits], 5.0) == ["a", "c", "b"]


def test_programs_in_dram_move_in_first_the_least_idle_ones_before_the_others(
    policy: Mori,
) -> None:
    for program, start, end in (("idle", 0.0, 1.0), ("busy", 0.0, 9.0)):
        runs(policy, program, start, end, 3000)
        policy._move(policy._programs[program], CPU)
    running = arrives(policy, "other", 11.0, 5500)
    policy.scheduled(running, 11.0, 0)
    back = [arrives(policy, p, at, 3000) for p, at in (("idle", 12.0), ("busy", 13.0))]
    new = arrives(policy, "new", 13.5, 1000)
    # 4,500 tokens are free: `busy` fits, then `idle` does not, then `new` does.
    assert [policy.admit(r, 9999, 15.0) for r in (*back, new)] == ["stop", "run", "run"]


def test_pins_give_way_most_idle_program_first(policy: Mori) -> None:
    pins = [
        runs(policy, p, start, end, 1000)
        for p, start, end in (("a", 0.0, 6.0), ("b", 0.0, 1.0), ("c", 0.0, 9.0))
    ]
    assert [p.program_id for p in policy.reclaim(pins, turn("z"), 10.0)] == ["b", "a", "c"]


def test_a_turn_that_ran_because_it_was_alone_joins_hbm(policy: Mori) -> None:
    request = arrives(policy, "huge", 0.0, 12_000)
    assert policy.admit(request, 9999, 0.0) == "stop"
    policy.scheduled(request, 1.0, 0)
    assert queue(policy, "huge") == GPU
    assert policy.admit(request, 9999, 1.0) == "run"


def test_the_tokens_of_ended_and_cancelled_programs_are_free_again(policy: Mori) -> None:
    runs(policy, "ended", 0.0, 1.0, 9000)
    waiting = arrives(policy, "cancelled", 2.0, 9000)
    policy.program_ended("ended", 3.0)
    policy.aborted(waiting, 3.0)
    policy.program_ended("cancelled", 3.0)
    assert policy._used == [0, 0, 0]
    assert policy.wake_s(3.0) is None
    assert policy.admit(arrives(policy, "next", 4.0, 9000), 9999, 4.0) == "run"


def test_a_decision_is_the_same_however_often_it_is_asked(policy: Mori) -> None:
    runs(policy, "idle", 0.0, 1.0, 8000)
    asked, once = policy, Mori(replace(TIERED, kv_tokens=10_000))
    runs(once, "idle", 0.0, 1.0, 8000)
    requests = [arrives(p, "new", 2.0, 8000) for p in (asked, once)]
    for tenth in range(20, 300):
        asked.wake_s(tenth / 10)
    assert [p.admit(r, 9999, 30.0) for p, r in zip((asked, once), requests, strict=True)] == [
        "stop", "stop",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [("mori(tick_s=0)+", "tick_s must be above 0"), ("mori(dram_ratio=-1)+", "at least 0")],
)
def test_wrong_arguments_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidPlugin, match=message):
        variant(text)
