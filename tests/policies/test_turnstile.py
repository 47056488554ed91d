"""Working-set admission, and retention by the worth of a hit against its room, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_turns import SMALL, held, order, run, tool_call, turn

from servers.basics.errors import InvalidPlugin
from servers.policies.contract import check
from servers.policies.estimates.lost_share import LostShare
from servers.policies.turnstile import Turnstile


def test_pinned_programs_go_first_and_then_programs_in_order_of_arrival() -> None:
    waiting = [
        turn("new", at=1.0, program_at=1.0),
        turn("old", at=9.0, program_at=0.0),
        turn("preempted", at=2.0, program_at=2.0, preempted=True),
        turn("kept", at=10.0, program_at=10.0, pinned=True),
    ]
    assert order(Turnstile(SMALL), waiting) == ["kept", "old", "new", "preempted"]


def test_the_program_that_arrived_last_is_preempted_and_its_pin_released_first() -> None:
    old, new = turn("old", program_at=1.0), turn("new", program_at=2.0)
    policy = Turnstile(SMALL)
    assert policy.victim([new, old], 5.0) is new
    released = policy.reclaim([held(old), held(new)], turn(), 5.0)
    assert [p.program_id for p in released] == ["new", "old"]


def test_a_program_that_does_not_fit_holds_back_all_that_come_after_it() -> None:
    policy = Turnstile(SMALL)
    running, big, small = turn("a", tokens=6000), turn("b", tokens=5000), turn("c", tokens=1000)
    for request in (running, big, small):
        policy.arrived(request, 0.0)
    policy.scheduled(running, 0.0, 0)
    assert policy.admit(big, 4000, 0.0) == "stop"
    assert policy.admit(small, 4000, 0.0) == "run"
    policy.preempted(running, 1.0)
    assert policy.admit(big, 10_000, 1.0) == "run"


def test_before_a_hundred_calls_the_pin_lasts_as_long_as_a_hit_would_pay_for() -> None:
    retention = run(Turnstile(SMALL), turn(tokens=3000), start=0.0, end=1.0)
    assert (retention.ttl_s, retention.why["stage"]) == (10.0, "default")


@pytest.mark.parametrize(
    ("tool", "stage", "ttl_s"),
    # With 1 / a = 10 s: calls of 2 s are worth waiting for, those of 30 s are not. Of all calls a
    # third takes 30 s, and until 2 s the value is 2/3 - 2/10.
    [("ls", "tool", 2.0), ("pytest", "all-tools", 2.0), ("make", "tool", 0.0)],
)
def test_the_pin_lasts_for_the_calls_that_are_worth_their_room(
    tool: str, stage: str, ttl_s: float
) -> None:
    policy = Turnstile(SMALL, k=3)
    for number in range(4):
        tool_call(policy, f"a{number}", "ls", 2.0)
        tool_call(policy, f"b{number}", "cat", 2.0)
        tool_call(policy, f"c{number}", "make", 30.0)
    retention = run(policy, turn("p", tokens=3000, tools=(tool,)), start=0.0, end=1.0)
    assert (retention.why["stage"], retention.ttl_s) == (stage, ttl_s)


def test_the_time_of_a_call_lasts_until_the_engine_knows_of_the_next_turn() -> None:
    """It arrives 2 s after the end of the turn before, in a step that ends 0.4 s later, when a pin
    of 2 s would be gone."""
    policy = Turnstile(SMALL, k=0)
    run(policy, turn("p", tokens=3000), start=0.0, end=1.0)
    policy.arrived(turn("p", at=3.0, index=1, tokens=3000), 3.4)
    retention = run(policy, turn("q", tokens=3000), start=4.0, end=5.0)
    assert retention.ttl_s == pytest.approx(2.4)


def test_the_last_turn_is_not_pinned() -> None:
    assert run(Turnstile(SMALL), turn(last=True), start=0.0, end=1.0).kind == "free"


@pytest.mark.parametrize(("argument", "value"), [("k", -1), ("reserve_turns", -0.5)])
def test_impossible_arguments_are_refused(argument: str, value: float) -> None:
    with pytest.raises(InvalidPlugin, match=f"{argument} must be at least 0, not {value}"):
        check(Turnstile, {argument: value})


def test_over_a_tier_a_hit_is_worth_a_prefill_as_often_as_the_tier_has_lost_the_context() -> None:
    """Loading 3,000 tokens takes 0.3 s and a prefill 3 s, and 1 / a is kv_tokens / 3,000 times the
    mean of both. One lost context of 128 moves the share to 1 / 128."""
    policy = Turnstile(replace(SMALL, reload_s=lambda tokens: tokens / 10_000))
    first = run(policy, turn("p", tokens=3000), start=0.0, end=1.0)
    assert first.ttl_s == pytest.approx(1.0)
    back = turn("p", index=1, tokens=3500)
    policy.arrived(back, 2.0)
    policy.scheduled(back, 2.0, 1400)
    second = run(policy, turn("q", tokens=3000), start=3.0, end=4.0)
    assert second.ttl_s == pytest.approx((127 * 1.0 + 1 * 10.0) / 128)


@pytest.mark.parametrize(
    ("cached_tokens", "pinned", "share"),
    [(1500, False, 0.0), (1400, True, 0.0), (0, False, 1 / 128)],
)
def test_a_context_is_lost_if_less_than_half_of_it_is_cached_although_nothing_kept_it(
    cached_tokens: int, pinned: bool, share: float
) -> None:
    lost = LostShare()
    lost.finished("p", 3000)
    lost.scheduled(turn("p", index=1, tokens=3500, pinned=pinned), cached_tokens)
    assert lost.share == pytest.approx(share)
    lost.scheduled(turn("p", index=2, tokens=4000), 0)  # nothing is known of the turn before
    assert lost.share == pytest.approx(share)
