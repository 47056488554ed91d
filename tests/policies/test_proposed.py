"""The rules of open RFCs: victims, residual SJF, session affinity, soft and learned TTL, whole
trajectories."""

from __future__ import annotations

import math

import pytest
from policy_turns import COSTS, SMALL, held, order, run, tool_call, turn

from servers.basics.errors import InvalidPlugin
from servers.policies.base import FREE, Request
from servers.policies.learned_ttl import LearnedTtl
from servers.policies.residual_sjf import ResidualSjf
from servers.policies.session_affinity import SessionAffinity
from servers.policies.soft_ttl import SoftTtl
from servers.policies.trajectory import Trajectory
from servers.variants import make_policy, variant


def waits(policy: ResidualSjf | SessionAffinity, program: str, at: float, tokens: int) -> Request:
    request = turn(program, at=at, tokens=tokens)
    policy.arrived(request, at)
    return request


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [("last", "long late"), ("lcf", "short"), ("program", "newest program")],
)
def test_every_policy_takes_a_rule_for_the_turn_to_preempt(rule: str, chosen: str) -> None:
    running = [
        turn("newest program", program_at=9.0, tokens=3000),
        turn("short", program_at=1.0, tokens=900),
        turn("long late", program_at=2.0, tokens=800),
    ]
    running[2].output_tokens = 200
    found = variant(f"static-ttl(victim={rule}, window=5)")
    assert found.name == f"static-ttl(victim={rule},window=5)" == found.policy_spec
    policy = make_policy(found, COSTS)
    assert policy.victim(running, 0.0).program_id == chosen
    assert isinstance(policy, found.policy)


def test_an_unknown_rule_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidPlugin, match=r"victim .* last or lcf or program, not fifo"):
        variant("turnstile(victim=fifo)")


def test_residual_sjf_runs_the_turn_with_the_fewest_uncached_blocks_first() -> None:
    policy = ResidualSjf(SMALL)
    run(policy, turn("warm", tokens=4000), start=0.0, end=1.0)
    # 4000 of 4320 tokens are cached: 20 blocks. Those of the others are 31 and 30.
    waiting = [
        waits(policy, "cold", 2.0, 500),
        waits(policy, "small", 2.5, 495),
        waits(policy, "warm", 3.0, 4320),
    ]
    assert order(policy, waiting, now=4.0) == ["warm", "small", "cold"]
    waiting[0].preempted = True
    assert order(policy, waiting, now=4.0) == ["cold", "warm", "small"]


def test_residual_sjf_counts_no_context_that_the_device_has_evicted() -> None:
    """The device holds 10,000 tokens, and others have computed 10,001 since."""
    policy = ResidualSjf(SMALL)
    run(policy, turn("cold", tokens=4000), start=0.0, end=1.0)
    run(policy, turn("others", tokens=10_001), start=1.0, end=2.0)
    waiting = [waits(policy, "cold", 3.0, 4320), waits(policy, "new", 3.0, 4000)]
    assert order(policy, waiting, now=4.0) == ["new", "cold"]


def test_residual_sjf_lets_turns_go_first_that_have_waited_too_long() -> None:
    policy = ResidualSjf(COSTS, max_wait_s=10.0)
    large, later = waits(policy, "large", 0.0, 9000), waits(policy, "later", 4.0, 8000)
    small = waits(policy, "small", 8.0, 100)
    assert order(policy, [large, later, small], now=9.0) == ["small", "later", "large"]
    assert policy.wake_s(9.0) == 10.0
    assert policy.woke(10.0) == [large.id]
    assert order(policy, [large, later, small], now=10.0) == ["large", "small", "later"]
    assert policy.wake_s(10.0) == 14.0


def test_session_affinity_lets_one_turn_of_a_recent_session_pass_within_its_window() -> None:
    policy = SessionAffinity(COSTS, window=3, head_wait_s=10.0, session_ttl_s=60.0)
    for program in ("out of window", "recent", "also recent"):
        run(policy, turn(program), start=0.0, end=1.0)
    names = ("new", "recent", "also recent", "out of window")
    waiting = [waits(policy, name, 2.0 + i, 1000) for i, name in enumerate(names)]
    assert policy.woke(6.0) == [-1, waiting[1].id]
    assert order(policy, waiting, now=6.0) == ["recent", "new", "also recent", "out of window"]
    policy.scheduled(waiting[1], 6.0, 900)
    policy.woke(6.0)
    rest = [waiting[0], *waiting[2:]]
    assert order(policy, rest, now=6.0) == ["also recent", "new", "out of window"]


def test_session_affinity_wakes_when_the_turn_that_may_pass_changes() -> None:
    policy = SessionAffinity(COSTS, head_wait_s=10.0, session_ttl_s=6.0)
    run(policy, turn("first"), start=0.0, end=1.0)
    run(policy, turn("second"), start=1.0, end=9.0)
    assert policy.wake_s(9.0) is None
    _, first, second = [waits(policy, name, 2.0, 1000) for name in ("new", "first", "second")]
    assert policy.wake_s(2.0) == 1.0 + 6.0
    assert policy.woke(2.0) == [-1, first.id]
    assert policy.woke(7.0) == [first.id, second.id]
    assert policy.wake_s(7.0) == 2.0 + 10.0
    assert policy.woke(12.0) == [second.id, -1]
    assert policy.wake_s(12.0) is None


@pytest.mark.parametrize("why", ["the first turn waits too long", "sessions are old", "preempted"])
def test_session_affinity_keeps_the_order_of_arrival_otherwise(why: str) -> None:
    policy = SessionAffinity(COSTS, head_wait_s=10.0, session_ttl_s=20.0)
    run(policy, turn("recent"), start=0.0, end=1.0)
    at = 21.5 if why == "sessions are old" else 2.0
    waiting = [waits(policy, "new", at, 1000), waits(policy, "recent", at + 1.0, 1000)]
    if why == "preempted":
        waiting[0].preempted = True
        policy.preempted(waiting[0], 3.0)
    policy.woke(12.0 if why == "the first turn waits too long" else at + 1.0)
    assert order(policy, waiting, now=12.0) == ["new", "recent"]


def test_soft_ttl_keeps_open_sessions_until_a_turn_lacks_blocks_or_the_ttl_is_over() -> None:
    policy = SoftTtl(COSTS, ttl_s=30.0)
    assert run(policy, turn("open"), start=0.0, end=1.0).ttl_s == 30.0
    assert run(policy, turn("over", last=True), start=0.0, end=1.0) == FREE
    assert policy.reclaim_when == "pressure"


def test_a_learned_ttl_ends_after_the_given_share_of_the_last_gaps() -> None:
    """The logarithms of 1 s and 100 s have mean ln 10 and deviation ln 10, and 84.13% of a normal
    distribution is below its mean and one deviation: 10 * 10 = 100 s."""
    policy = LearnedTtl(COSTS, within=0.8413, window=2, default_ttl_s=60.0)
    tool_call(policy, "first", "ls", 1.0)
    assert run(policy, turn("open"), start=0.0, end=1.0).ttl_s == 60.0
    policy.program_ended("open", 1.0)
    tool_call(policy, "second", "make", 100.0)
    assert run(policy, turn("open"), start=0.0, end=1.0).ttl_s == pytest.approx(100.0, rel=1e-3)
    assert run(policy, turn("over", last=True), start=0.0, end=1.0) == FREE
    assert policy.reclaim_when == "pressure"


def test_a_trajectory_keeps_its_kv_until_it_ends() -> None:
    policy = Trajectory(SMALL)
    assert run(policy, turn("open"), start=0.0, end=1.0).ttl_s == math.inf
    assert run(policy, turn("over", last=True), start=0.0, end=1.0) == FREE


def test_a_turn_without_pinned_kv_waits_until_its_prompt_and_the_reserve_fit() -> None:
    policy = Trajectory(SMALL, reserve=0.1)  # 1,000 of 10,000 tokens
    new, back = turn("new", tokens=3000), turn("back", at=1.0, tokens=3000, pinned=True)
    assert order(policy, [new, back]) == ["back", "new"]
    assert policy.admit(new, 4000, 1.0) == "run"
    assert policy.admit(new, 3999, 1.0) == "stop"
    assert policy.admit(back, 0, 1.0) == "run"


def test_the_trajectory_that_began_last_loses_its_kv_as_a_whole() -> None:
    policy = Trajectory(SMALL)
    early, late = (held(turn("p", program_at=at, tokens=3000)) for at in (1.0, 2.0))
    assert list(policy.reclaim([early, late], turn("new"), 3.0)) == [late, early]
    assert policy.victim([late.request, early.request], 3.0) is late.request
    assert policy.reclaim_when == "stuck"
