"""Admission with room to grow, on 10,000 tokens. 1000 tokens prefill in 1 s and cost 1.85 s."""

from __future__ import annotations

import math

import pytest
from policy_turns import order, turn

from servers.basics.errors import InvalidPlugin
from servers.policies.base import Costs, Pin, Request, Retention
from servers.policies.estimates.lognormal import LogNormal, LogNormalTimes
from servers.policies.estimates.turn_window import TurnWindow
from servers.policies.progress_ttl import ProgressTtl
from servers.variants import variant

COSTS = Costs(prefill_s=lambda tokens: tokens / 1000, kv_tokens=10_000)


@pytest.fixture
def policy() -> ProgressTtl:
    return ProgressTtl(COSTS, window=2, batch_gain=False)


def arrives(policy: ProgressTtl, program: str, tokens: int, at: float) -> Request:
    request = turn(program, tokens=tokens, at=at)
    policy.arrived(request, at)
    return request


def starts(policy: ProgressTtl, program: str, tokens: int, at: float, cached: int = 0) -> Request:
    request = arrives(policy, program, tokens, at)
    policy.scheduled(request, at, cached)
    return request


def serves(policy: ProgressTtl, program: str, tokens: int, at: float, cached: int = 0) -> Retention:
    """Run a turn that takes no time and generates nothing."""
    return policy.finished(starts(policy, program, tokens, at, cached), at)


def learns(policy: ProgressTtl) -> None:
    """Show two turns whose prompt grows by 200 tokens."""
    serves(policy, "old", 1000, 0.0)
    serves(policy, "old", 1200, 1.0, cached=1000)


def test_a_program_is_admitted_if_its_prompt_and_100_tokens_fit(policy: ProgressTtl) -> None:
    starts(policy, "a", 4900, 0.0)  # 5,000
    assert policy.admit(arrives(policy, "b", 4900, 1.0), 0, 1.0) == "run"
    assert policy.admit(arrives(policy, "c", 4901, 1.0), 0, 1.0) == "skip"


def test_nobody_is_admitted_once_the_smallest_does_not_fit(policy: ProgressTtl) -> None:
    starts(policy, "a", 4900, 0.0)
    assert policy.admit(arrives(policy, "b", 4901, 1.0), 0, 1.0) == "stop"


def test_growth_is_reserved_for_the_rounds_to_come(policy: ProgressTtl) -> None:
    learns(policy)
    # Both turns were the first round since a pause, so that 2 rounds of 200 tokens are reserved.
    assert policy.admit(arrives(policy, "b", 9500, 2.0), 0, 2.0) == "run"
    assert policy.admit(arrives(policy, "c", 9501, 2.0), 0, 2.0) == "skip"
    # An active program adds 2,100 tokens and its own 2 rounds.
    starts(policy, "d", 2000, 3.0)
    assert policy.admit(arrives(policy, "e", 7000, 3.0), 0, 3.0) == "run"
    assert policy.admit(arrives(policy, "f", 7001, 3.0), 0, 3.0) == "skip"


def test_a_larger_batch_is_worth_the_reserve_if_its_decodes_gain_more_than_a_prefill_costs() -> (
    None
):
    """A step takes 1 s for any batch, so that a second turn doubles the decodes: with outputs of 0
    and n tokens, n / 2 s are gained. The program's prefill costs 7.001 * 1.85 = 12.95 s. The other
    one loses some of its two rounds, but has no KV yet whose loss would cost anything."""
    flat = Costs(prefill_s=COSTS.prefill_s, kv_tokens=10_000, decode_step_s=lambda *_: 1.0)
    for output, answer in ((25, "stop"), (26, "run")):
        policy = ProgressTtl(flat, window=2)
        serves(policy, "old", 1000, 0.0)
        request = starts(policy, "old", 1200, 1.0, cached=1000)
        request.output_tokens = output
        policy.finished(request, 1.0)
        starts(policy, "d", 2000, 3.0)
        assert policy.admit(arrives(policy, "f", 7001, 3.0), 0, 3.0) == answer


def test_an_arrival_of_a_paused_program_is_no_reason_to_sum_the_active_ones_again() -> None:
    steps: list[int] = []

    def decode_s(turns: int, _context_tokens: int) -> float:
        steps.append(turns)
        return 1.0

    policy = ProgressTtl(Costs(COSTS.prefill_s, kv_tokens=10_000, decode_step_s=decode_s))
    starts(policy, "a", 4900, 0.0)
    assert policy.admit(arrives(policy, "b", 4901, 1.0), 0, 1.0) == "stop"
    assert steps == [1]
    assert policy.admit(arrives(policy, "c", 4902, 2.0), 0, 2.0) == "stop"
    assert policy.admit(arrives(policy, "d", 4900, 3.0), 0, 3.0) == "run"
    assert steps == [1]


def test_the_program_whose_turn_ended_last_goes_first_and_new_ones_last(
    policy: ProgressTtl,
) -> None:
    serves(policy, "early", 1000, 1.0)
    serves(policy, "late", 1000, 2.0)
    starts(policy, "a", 9800, 2.5)
    waiting = [arrives(policy, name, 1000, 3.0) for name in ("new", "early", "late")]
    assert order(policy, waiting, 3.0) == ["late", "early", "new"]
    by_arrival = ProgressTtl(COSTS, resume_order="arrival")
    for request in waiting:
        by_arrival.arrived(request, 3.0)
    assert order(by_arrival, waiting, 3.0) == ["new", "early", "late"]


def test_a_turn_that_has_waited_for_300_s_runs_first_and_anyway(policy: ProgressTtl) -> None:
    serves(policy, "recent", 1000, 0.0)
    starts(policy, "a", 9800, 0.0)
    new = arrives(policy, "new", 5000, 1.0)
    recent = arrives(policy, "recent", 1000, 2.0)
    assert policy.admit(new, 0, 300.0) == "stop"
    assert policy.wake_s(300.0) == 301.0
    assert order(policy, [recent, new], 300.0) == ["recent", "new"]
    assert order(policy, [recent, new], 301.0) == ["new", "recent"]
    assert policy.admit(new, 0, 301.0) == "run"


def test_kv_is_kept_for_the_ttl_and_then_the_program_is_paused(policy: ProgressTtl) -> None:
    for at in (0.0, 2.0, 4.0):  # two gaps of 2 s
        retention = serves(policy, "p", 3000, at)
    # Any d above 2 s is best while 3 * 1.85 s exceed 2 s, so the longest is taken.
    assert (retention.kind, retention.ttl_s) == ("pin", pytest.approx(5.55))
    waiting = arrives(policy, "a", 8000, 5.0)
    assert policy.admit(waiting, 0, 9.5) == "stop"
    assert policy.wake_s(9.5) == pytest.approx(9.55)
    assert policy.admit(waiting, 0, 9.6) == "run"


def test_a_context_that_is_rebuilt_sooner_than_tools_end_is_not_kept(policy: ProgressTtl) -> None:
    for at in (0.0, 2.0, 4.0):
        retention = serves(policy, "p", 1000, at)  # 1.85 s
    assert retention.kind == "free"


def test_after_the_most_rounds_a_program_makes_way_and_goes_last_once() -> None:
    policy = ProgressTtl(COSTS, window=2, most_rounds=1)
    for at in (0.0, 2.0):
        serves(policy, "long", 3000, at)
    running = starts(policy, "long", 3000, 4.0, cached=3000)
    new = arrives(policy, "new", 9000, 5.0)
    assert policy.finished(running, 6.0).kind == "free"
    back = arrives(policy, "long", 3100, 7.0)
    assert order(policy, [back, new], 7.0) == ["new", "long"]


def test_more_than_fits_pauses_programs_after_their_turn_longest_segment_first(
    policy: ProgressTtl,
) -> None:
    first = starts(policy, "first", 4000, 0.0)
    second = starts(policy, "second", 4000, 5.0)
    overlapping = arrives(policy, "first", 6000, 10.0)  # 6,100 + 4,100
    policy.finished(second, 11.0)
    policy.finished(first, 12.0)
    policy.finished(overlapping, 12.0)
    starts(policy, "other", 9000, 12.0)
    assert policy.admit(arrives(policy, "first", 6000, 13.0), 0, 13.0) == "stop"


def test_pins_give_way_to_running_turns_only() -> None:
    policy = ProgressTtl(COSTS, window=1)
    for at in (0.0, 2.0):
        done = starts(policy, "p", 3000, at)
        policy.finished(done, at)
    kept = Pin(done, 3000, 2.0, 7.55)
    running, waiting = starts(policy, "a", 2000, 3.0), arrives(policy, "b", 9000, 3.0)
    assert list(policy.reclaim([kept], waiting, 3.0)) == []
    assert list(policy.reclaim([kept], running, 3.0)) == [kept]
    assert policy.review([kept], 0, 3.0) == []
    policy.unpinned(kept, 3.0)
    assert policy.review([kept], 0, 3.0) == [kept]  # its program is paused


def test_the_utility_of_a_ttl_is_the_time_that_hits_save_less_the_time_held() -> None:
    # F = 1/2, and the times below it are worth e^(1/2) * Phi(-1) = 0.2616 s.
    assert LogNormal(0.0, 1.0).utility(1.0, 4.0) == pytest.approx(
        0.5 * 4 - 0.261578 - 0.5, abs=1e-5
    )


def test_a_fit_needs_a_full_window_of_which_zeros_are_left_out() -> None:
    times = LogNormalTimes(3)
    for seconds in (2.0, 0.0):
        times.add(seconds)
    assert times.best_ttl_s(5.0, 10.0) == 0.0
    times.add(2.0)
    assert times.best_ttl_s(5.0, 10.0) == 5.0
    for _ in range(3):
        times.add(0.0)
    assert times.best_ttl_s(5.0, 10.0) == 0.0


def test_the_window_of_turns_forgets_the_oldest() -> None:
    turns = TurnWindow(2)
    turns.add(100, 10, 0, 1, 1.0)
    assert (turns.target_rounds(14), turns.per_second) == (0, 0.0)
    turns.add(300, 20, 50, 2, 3.0)
    assert (turns.mean_prompt, turns.mean_output, turns.mean_growth) == (200.0, 15.0, 50.0)
    assert (turns.target_rounds(14), turns.per_second) == (3, 0.5)
    turns.add(500, 20, 70, 20, 4.0)
    assert (turns.mean_prompt, turns.mean_growth, turns.per_second) == (400.0, 60.0, 1.0)
    assert turns.target_rounds(14) == 14


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("window=0", "must be at least 1"),
        ("most_active=0", "must be at least 1"),
        ("longest_s=-1", "longest_s must be at least 0 s"),
        ("resume_after_s=0", "resume_after_s above 0 s"),
        ("resume_order=mru", "resume_order must be recent or arrival, not mru"),
    ],
)
def test_wrong_arguments_are_refused(argument: str, message: str) -> None:
    with pytest.raises(InvalidPlugin, match=message):
        variant(f"progress-ttl({argument})")


def test_on_a_device_of_unknown_size_everybody_is_admitted() -> None:
    policy = ProgressTtl(Costs(prefill_s=COSTS.prefill_s))
    assert policy.costs.kv_tokens == math.inf
    starts(policy, "a", 10**6, 0.0)
    assert policy.admit(arrives(policy, "b", 10**6, 1.0), 0, 1.0) == "run"
