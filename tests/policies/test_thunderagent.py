"""Pausing and resuming by programs, on 10,000 tokens. A program takes its tokens and 100 more."""

from __future__ import annotations

import pytest
from policy_turns import order, turn

from servers.basics.errors import InvalidPlugin
from servers.policies.base import Costs, Request
from servers.policies.thunderagent import ThunderAgent
from servers.sim import Engine, Limits, Sequence
from servers.variants import variant
from tests.sim.test_engine import S
from tests.sim.test_engine import turn as submission
from tests.sim.worlds import profile

COSTS = Costs(prefill_s=lambda tokens: tokens / 1000, kv_tokens=10_000)


@pytest.fixture
def policy() -> ThunderAgent:
    return ThunderAgent(COSTS)


def arrives(
    policy: ThunderAgent, program: str, tokens: int, at: float, *, first: float | None = None
) -> Request:
    request = turn(program, tokens=tokens, at=at, program_at=first)
    policy.arrived(request, at)
    return request


def acts(policy: ThunderAgent, program: str, tokens: int, at: float = 1.0) -> None:
    """A turn of `tokens` tokens arrives at 0 s and ends at `at`."""
    policy.finished(arrives(policy, program, tokens, 0.0), at)


def held(policy: ThunderAgent, request: Request, now: float) -> bool:
    return policy.admit(request, 0, now) == "stop"


def test_a_new_program_is_held_back_unless_it_fits_with_100_tokens_more(
    policy: ThunderAgent,
) -> None:
    arrives(policy, "a", 4900, 0.0)  # 5,000 of 10,000 tokens
    assert not held(policy, arrives(policy, "b", 4900, 1.0), 1.0)
    assert held(policy, arrives(policy, "c", 1, 2.0), 2.0)


def test_a_new_program_that_fits_waits_behind_paused_ones(policy: ThunderAgent) -> None:
    arrives(policy, "a", 5900, 0.0)  # 6,000
    assert held(policy, arrives(policy, "b", 4000, 1.0), 1.0)  # 4,100
    assert held(policy, arrives(policy, "c", 10, 2.0), 2.0)  # 110


def test_every_5_s_paused_programs_that_fit_resume_smallest_first(policy: ThunderAgent) -> None:
    running = arrives(policy, "a", 9000, 0.0)
    large, small, middle = (
        arrives(policy, name, tokens, 1.0)
        for name, tokens in (("large", 7000), ("small", 2000), ("middle", 4000))
    )
    policy.finished(running, 3.0)
    policy.program_ended("a", 3.0)
    assert all(held(policy, r, 4.9) for r in (large, small, middle))
    assert policy.wake_s(4.9) == 5.0
    # 2,100 + 4,100 leave 3,800, and `large` needs 7,100.
    assert [held(policy, r, 5.0) for r in (large, small, middle)] == [True, False, False]
    assert order(policy, [large, small, middle], 5.0) == ["small", "middle", "large"]


def test_returning_programs_resume_before_new_ones_and_these_before_acting_ones(
    policy: ThunderAgent,
) -> None:
    for name, tokens in (("returns", 1000), ("idles", 800), ("large", 4000)):
        acts(policy, name, tokens)
        policy.finished(arrives(policy, name, tokens, 1.0), 1.5)
    # 9,600 + 1,100 + 900 tokens: at 5 s the two small programs are paused.
    policy.finished(arrives(policy, "large", 9500, 2.0), 6.0)
    returning = arrives(policy, "returns", 1000, 6.0)
    new = arrives(policy, "new", 850, 6.0)
    policy.finished(arrives(policy, "large", 8700, 6.0), 11.0)
    # 1,200 tokens are free at 10 s, which each of the three needs alone.
    assert [held(policy, r, 10.0) for r in (returning, new)] == [False, True]
    arrives(policy, "large", 7600, 11.0)  # 7,700 + 1,100 leave 1,200 again
    idle = arrives(policy, "idles", 800, 15.0)
    assert [held(policy, r, 15.0) for r in (new, idle)] == [False, True]


def test_acting_programs_are_paused_smallest_first_until_the_rest_fits(
    policy: ThunderAgent,
) -> None:
    for name, tokens in (("large", 4000), ("small", 1000), ("middle", 2000)):
        acts(policy, name, tokens)
    arrives(policy, "small", 4900, 2.0)  # 4,100 + 5,000 + 2,100 = 11,200 tokens
    assert not held(policy, arrives(policy, "middle", 2000, 4.0), 4.0)
    policy.finished(turn("middle", tokens=2000), 4.5)
    assert held(policy, arrives(policy, "middle", 2000, 5.0), 5.0)
    assert not held(policy, arrives(policy, "large", 4000, 5.0), 5.0)


def test_if_that_does_not_suffice_reasoning_programs_are_paused_when_their_turns_end(
    policy: ThunderAgent,
) -> None:
    acts(policy, "a", 4000)
    acts(policy, "b", 4000)
    first, second = arrives(policy, "a", 6000, 2.0), arrives(policy, "b", 5000, 2.0)  # 11,200
    assert not held(policy, first, 6.0)
    policy.finished(first, 7.0)
    policy.finished(second, 7.0)
    assert held(policy, arrives(policy, "a", 6100, 8.0), 8.0)
    assert held(policy, arrives(policy, "b", 5100, 8.0), 8.0)


def test_a_turn_resumes_its_program_after_30_minutes_and_then_waits_behind_earlier_ones(
    policy: ThunderAgent,
) -> None:
    running = arrives(policy, "a", 9000, 0.0)
    late = arrives(policy, "b", 9000, 2.0)
    assert held(policy, late, 1801.9)
    assert policy.wake_s(1801.9) == 1802.0
    assert not held(policy, late, 1802.0)
    # a turn of the active program that came at 1,000 s had been let through before
    other = arrives(policy, "a", 9000, 1803.0)
    assert order(policy, [other, late, running], 1803.0) == ["a", "b", "a"]


@pytest.mark.parametrize(("shared_once", "fits"), [(True, True), (False, False)])
def test_what_first_turns_find_in_the_cache_counts_with_the_program_that_computed_it(
    shared_once: bool, fits: bool
) -> None:
    policy = ThunderAgent(COSTS, shared_once=shared_once)
    policy.scheduled(arrives(policy, "a", 5000, 0.0), 0.0, 0)  # 5,100
    policy.scheduled(arrives(policy, "b", 4000, 1.0), 1.0, 3000)  # 1,100, or else 4,100
    # Of 6,000 tokens, 3,000 are taken to be shared: 3,100 of 3,800 that are left.
    third = arrives(policy, "c", 6000, 2.0)
    assert held(policy, third, 2.0) != fits
    if fits:
        policy.scheduled(third, 2.0, 2200)  # 3,900: 10,100 in all, so that all are paused
        policy.finished(third, 6.0)
        assert held(policy, arrives(policy, "c", 6000, 7.0), 7.0)


def test_an_idle_engine_resumes_the_program_of_the_turn_that_it_runs(policy: ThunderAgent) -> None:
    running = arrives(policy, "a", 9000, 0.0)
    waiting = arrives(policy, "b", 9000, 1.0)
    policy.finished(running, 2.0)
    policy.scheduled(waiting, 2.0, 0)
    assert not held(policy, waiting, 2.0)


def test_weights_and_decay_make_room_for_more_while_programs_act() -> None:
    for arguments, now, fits in (
        ({}, 5.0, False),
        ({"acting_weight": 0.5}, 5.0, True),  # 4,000 + 100 + 6,000
        ({"acting_decay": True}, 5.0, True),  # 8,000 / 2^4 + 100 + 6,100
    ):
        policy = ThunderAgent(COSTS, **arguments)  # type: ignore[arg-type]
        acts(policy, "a", 7900)
        arrives(policy, "b", 1800, 1.0)  # 8,000 + 1,900
        waiting = arrives(policy, "c", 3000, 1.0)
        assert held(policy, waiting, now) is not fits, arguments


def test_dynamos_thresholds_pause_earlier_and_resume_later() -> None:
    policy = ThunderAgent(COSTS, pause_above=0.95, pause_to=0.8, resume_to=0.85)
    for name, tokens in (("a", 1400), ("b", 1500), ("c", 6400)):
        acts(policy, name, tokens)  # 9,600 tokens are in use
    # Pausing `a` leaves 8,100, more than 8,000; pausing `b` too leaves 6,500.
    paused = [arrives(policy, name, 1500, 5.0) for name in ("a", "b")]
    assert all(held(policy, request, 5.0) for request in paused)
    # 8,500 - 6,500 = 2,000 hold one of them, with 1,600 tokens.
    assert [held(policy, request, 10.0) for request in paused] == [False, True]


def test_by_size_a_large_program_is_passed_over_and_by_arrival_it_is_not() -> None:
    for name, resumed in (("size", "small"), ("arrival", "large")):
        policy = ThunderAgent(COSTS, order=name)  # type: ignore[arg-type]
        running = arrives(policy, "a", 9000, 0.0)
        large = arrives(policy, "large", 8000, 1.0)
        small = arrives(policy, "small", 2000, 2.0)
        policy.finished(running, 3.0)
        policy.program_ended("a", 3.0)
        active = [r.program_id for r in (large, small) if not held(policy, r, 5.0)]
        assert active == [resumed]


def test_by_arrival_the_latest_program_is_paused_first() -> None:
    policy = ThunderAgent(COSTS, order="arrival")
    for name, at in (("old", 0.0), ("late", 0.5)):
        policy.finished(arrives(policy, name, 4000, at), 1.0)
    arrives(policy, "old", 2000, 2.0, first=0.0)
    grown = arrives(policy, "old", 7000, 3.0, first=0.0)
    assert held(policy, arrives(policy, "late", 4100, 6.0, first=0.5), 6.0)
    assert not held(policy, grown, 6.0)


@pytest.mark.parametrize(("name", "before"), [("size", range(50, 61)), ("arrival", range(11))])
def test_by_size_a_stream_of_small_programs_starves_a_large_one(name: str, before: range) -> None:
    """A program of 116 tokens arrives every 0.1 s and runs for 0.3 s, and three of them fill 400
    tokens. The large one needs 190 and arrives after 1 s, when ten have arrived."""
    ended: list[Sequence] = []
    costs = Costs(prefill_s=lambda tokens: tokens / 1000, kv_tokens=400)
    policy = ThunderAgent(costs, order=name, interval_s=0.05, resume_after_s=1e6)  # type: ignore[arg-type]
    engine = Engine(policy, profile(25), Limits(), on_end=ended.append)
    engine.submit(submission("large", 90, 2), S)
    for number in range(60):
        engine.submit(submission(f"small {number}", 16, 30), number * S // 10)
    engine.run()
    assert [sequence.view.program_id for sequence in ended].index("large") in before


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("interval_s=0", "must be above 0"),
        ("resume_after_s=-1", "must be above 0"),
        ("acting_weight=-0.5", "acting_weight must be at least 0, not -0.5"),
        ("pause_above=0.8", "must not exceed pause_above"),
        ("order=oldest", "order must be size or arrival, not oldest"),
    ],
)
def test_wrong_arguments_are_refused(argument: str, message: str) -> None:
    with pytest.raises(InvalidPlugin, match=message):
        variant(f"thunderagent({argument})")


@pytest.mark.parametrize("tier", ["+", "+native"])
def test_sharing_is_not_counted_over_a_tier_from_which_turns_also_load(tier: str) -> None:
    with pytest.raises(InvalidPlugin, match="remove shared_once or"):
        variant(f"thunderagent(shared_once=true){tier}")
    assert variant(f"thunderagent(shared_once=false){tier}").offload is not None
