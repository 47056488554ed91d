"""InferCept's choice of the least waste. 1000 tokens prefill in 1 s and reload in 0.1 s."""

from __future__ import annotations

import math

import pytest
from policy_turns import COSTS, TIERED, held, order, run, turn

from servers.policies.base import Costs, Pin
from servers.policies.infercept import Infercept


def due(policy: Infercept, pins: list[Pin], batch: int, now: float) -> list[Pin]:
    """Return the contexts that it pays to release: those that `review` releases, and the one that
    it leaves for a turn that lacks memory."""
    released = list(policy.review(pins, batch, now))
    return released + [p for p in policy.reclaim(pins, turn("z"), now) if p not in released]


def test_every_context_is_preserved_until_its_first_review() -> None:
    retention = run(Infercept(COSTS), turn(tokens=1000), start=0.0, end=5.0)
    assert (retention.kind, retention.ttl_s) == ("pin", math.inf)


def test_a_context_is_released_when_preserving_has_wasted_as_much_as_discarding() -> None:
    # C = 1000 in one chunk, C_batch = 3000: 1 s * (1000 + 3000) = 4000 token-seconds,
    # which preserving 1000 tokens reaches after 4 s.
    policy = Infercept(COSTS)
    kept = held(turn(tokens=1000), since=10.0, until=math.inf)
    assert due(policy, [kept], 3000, 13.9) == []
    assert policy.wake_s(13.9) == 14.0
    assert due(policy, [kept], 3000, 14.0) == [kept]
    assert policy.wake_s(14.0) is None


def test_the_waste_of_discarding_counts_contexts_up_to_one_step() -> None:
    policy = Infercept(COSTS)
    # 2048 tokens fit into a step; 4096 do not, so 4.096 s * (2048 + 1000).
    assert policy.discard_waste(2048, 1000) == pytest.approx(2.048 * 3048)
    assert policy.discard_waste(4096, 1000) == pytest.approx(4.096 * 3048)


def test_with_an_offload_tier_swapping_wastes_only_the_reload_and_wins() -> None:
    # Swap: 0.1 s * 1000 = 100; discard: 1 s * (1000 + 3000) = 4000; so preserve for 0.1 s.
    policy = Infercept(TIERED)
    assert policy.swap_waste(1000) == 100.0
    kept = held(turn(tokens=1000), since=10.0, until=math.inf)
    assert due(policy, [kept], 3000, 10.09) == []
    assert due(policy, [kept], 3000, 10.1) == [kept]


def test_a_tier_that_is_slower_than_recomputing_is_not_used() -> None:
    slow = Costs(prefill_s=lambda n: n / 1000, reload_s=lambda n: n / 100)
    # Swap: 10 s * 1000 = 10000; discard with an empty batch: 1 s * 1000.
    assert Infercept(slow).held_for_s(1000, 0) == 1.0


def test_without_a_tier_swapping_is_infinitely_wasteful() -> None:
    assert Infercept(COSTS).swap_waste(1000) == math.inf


def test_a_larger_batch_makes_discarding_more_expensive() -> None:
    policy = Infercept(COSTS)
    assert policy.held_for_s(1000, 0) == 1.0
    assert policy.held_for_s(1000, 9000) == 10.0


def test_a_new_pin_has_a_wake_up_before_its_first_review() -> None:
    policy = Infercept(COSTS)
    run(policy, turn(tokens=1000), start=0.0, end=5.0)
    # The shortest time, with an empty batch: 1 s.
    assert policy.wake_s(5.0) == 6.0


def test_a_context_is_preserved_once_its_next_turn_has_arrived() -> None:
    policy = Infercept(COSTS)
    done = turn("p", tokens=1000)
    run(policy, done, start=0.0, end=5.0)
    kept = held(done, since=5.0, until=math.inf)
    next_turn = turn("p", index=1, at=6.0)
    policy.arrived(next_turn, 6.0)
    assert due(policy, [kept], 0, 99.0) == []
    policy.aborted(next_turn, 99.0)
    assert due(policy, [kept], 0, 99.0) == [kept]


def test_once_its_next_turn_has_finished_a_context_is_reviewed_again() -> None:
    policy = Infercept(COSTS)
    run(policy, turn("p", tokens=1000), start=0.0, end=5.0)
    done = turn("p", index=1, at=6.0, tokens=1000)
    run(policy, done, start=6.0, end=7.0)
    kept = held(done, since=7.0, until=math.inf)
    assert due(policy, [kept], 0, 7.9) == []
    assert due(policy, [kept], 0, 8.0) == [kept]


def test_the_return_of_a_program_that_has_ended_is_forgotten() -> None:
    policy = Infercept(COSTS)
    policy.arrived(turn("p", index=1, at=6.0), 6.0)
    policy.program_ended("p", 7.0)
    kept = held(turn("p", tokens=1000), since=5.0, until=math.inf)
    assert due(policy, [kept], 0, 6.0) == [kept]


def test_the_next_wake_up_is_the_first_due_time_of_all_contexts() -> None:
    # 1000 tokens are due after 1 s. 3000 tokens need two chunks: 3 s · 1500 / 3000 = 1.5 s.
    policy = Infercept(COSTS)
    short, long = (
        held(turn(p, tokens=n), since=10.0, until=math.inf) for p, n in (("s", 1000), ("l", 3000))
    )
    for pins in ([short, long], [long, short]):
        assert due(policy, pins, 0, 10.5) == []
        assert policy.wake_s(10.5) == 11.0
    assert due(policy, [long, short], 0, 11.0) == [short]
    assert policy.wake_s(11.0) == 11.5


def test_a_smaller_batch_makes_a_context_due_earlier() -> None:
    # After 1 s * (1000 + 3000) / 1000 tokens = 4 s, and beside 1000 tokens after 2 s.
    policy = Infercept(COSTS)
    kept = held(turn(tokens=1000), since=10.0, until=math.inf)
    assert due(policy, [kept], 3000, 11.0) == []
    assert due(policy, [kept], 3100, 12.0) == []
    assert due(policy, [kept], 1000, 12.0) == [kept]


def test_until_the_first_context_is_due_a_larger_batch_changes_only_the_one_that_was() -> None:
    priced: list[int] = []

    def prefill_s(tokens: int) -> float:
        priced.append(tokens)
        return tokens / 1000

    # Alone, 2000 tokens are due after 2 s, beside 200 tokens after 2.2 s; 3000 after 1.5 s or more.
    policy = Infercept(Costs(prefill_s=prefill_s))
    first = held(turn("f", tokens=2000), since=10.0, until=math.inf)
    later = held(turn("l", tokens=3000), since=11.0, until=math.inf)
    assert due(policy, [first, later], 0, 12.1) == [first]
    priced.clear()
    assert due(policy, [first, later], 200, 12.1) == []
    assert priced == [2000]
    assert due(policy, [first, later], 200, 12.2) == [first]


def test_a_context_lacks_the_last_token_and_may_be_due_before_the_first_wake_up() -> None:
    policy, done = Infercept(COSTS), turn(tokens=1000)
    assert due(policy, [], 0, 4.0) == []
    run(policy, done, start=0.0, end=5.0)
    assert policy.wake_s(5.0) == 6.0
    kept = Pin(done, 999, 5.0, math.inf)  # due after 0.999 s
    assert due(policy, [kept], 0, 5.9995) == [kept]


def test_a_later_call_does_not_postpone_the_wake_up_of_an_earlier_one() -> None:
    policy = Infercept(COSTS)
    run(policy, turn("a", tokens=1000), start=0.0, end=5.0)
    run(policy, turn("b", tokens=1000), start=0.0, end=5.5)
    assert policy.wake_s(5.5) == 6.0
    # Without a review at 6 s its pin was released otherwise.
    assert policy.wake_s(6.0) is None


def test_the_reason_of_a_pin_names_the_tool_and_the_shortest_time() -> None:
    why = run(Infercept(COSTS), turn(tokens=1000), start=0.0, end=5.0).why
    assert why == {"tool": "ls", "at_least_s": 1.0}


def test_of_the_contexts_that_are_due_the_most_wasteful_stays_until_memory_is_needed() -> None:
    # Alone: 1 s * 1000, 3 s * 1500 (in chunks) and 2 s * 2000 token-seconds.
    policy = Infercept(COSTS)
    small, large, middle = (
        held(turn(p, tokens=n), since=0.0, until=math.inf)
        for p, n in (("s", 1000), ("l", 3000), ("m", 2000))
    )
    young = held(turn("y", tokens=9000), since=98.0, until=math.inf)
    pins = [small, large, young, middle]
    assert list(policy.review(pins, 0, 99.0)) == [small, middle]
    # Nobody takes the context that is not due.
    assert list(policy.reclaim([large, young], turn("z"), 99.0)) == [large]
    policy.arrived(turn("l", index=1, at=99.5), 99.5)
    assert list(policy.reclaim([large, young], turn("z"), 99.5)) == []


def test_contexts_are_released_for_lack_of_memory_as_the_argument_says() -> None:
    assert Infercept(COSTS).reclaim_when == "pressure"
    assert Infercept(COSTS, reclaim_when="stuck").reclaim_when == "stuck"
    policy = Infercept(COSTS, reclaim_when="pressure")
    pins = [held(turn(p, tokens=n), since=1.0) for p, n in (("a", 500), ("b", 900), ("c", 700))]
    assert [p.program_id for p in policy.reclaim(pins, turn("z"), 1.0)] == ["b", "c", "a"]


def test_the_running_turn_of_the_latest_program_arrival_is_preempted() -> None:
    running = [turn(p, index=1, at=9.0, program_at=at) for p, at in (("a", 1), ("c", 3), ("b", 2))]
    assert Infercept(COSTS).victim(running, 10.0).program_id == "c"


WAITING = [
    turn("new", at=1.0, program_at=1.0),
    turn("old", index=1, at=9.0, program_at=0.0),
    turn("lost", at=8.0, program_at=3.0, preempted=True),
    turn("kept", index=1, at=9.0, program_at=5.0, pinned=True),
]


def test_preserved_turns_go_first_and_preempted_ones_back_to_their_place() -> None:
    assert order(Infercept(COSTS), WAITING) == ["kept", "old", "new", "lost"]


def test_over_a_tier_swapped_turns_go_before_those_that_never_ran() -> None:
    assert order(Infercept(TIERED), WAITING) == ["kept", "old", "lost", "new"]


def test_the_other_readings_of_the_queue_order_by_the_arrival_of_the_turn() -> None:
    assert order(Infercept(COSTS, queue_order="turn"), WAITING) == ["lost", "new", "old", "kept"]
    preserved = Infercept(COSTS, queue_order="preserved_turn")
    assert order(preserved, WAITING) == ["kept", "new", "lost", "old"]


def test_last_turns_and_empty_contexts_are_freed() -> None:
    policy = Infercept(COSTS)
    assert run(policy, turn(last=True), start=0.0, end=1.0).kind == "free"
    assert run(policy, turn(tokens=0), start=0.0, end=1.0).kind == "free"
