"""PLAS with quanta of 1 s, 2 s and infinity, and beta = 3."""

from __future__ import annotations

import pytest
from policy_turns import COSTS, order, run, turn

from servers.policies.autellix import Autellix
from servers.policies.base import Request


@pytest.fixture
def policy() -> Autellix:
    return Autellix(COSTS, quanta_s=(1.0, 2.0), beta=3.0)


def served(policy: Autellix, program: str, seconds: float) -> None:
    run(policy, turn(program, at=0.0), start=0.0, end=seconds)


def waits(policy: Autellix, program: str, at: float, **kinds: bool) -> Request:
    request = turn(program, index=1, at=at, program_at=0.0, **kinds)
    policy.arrived(request, at)
    return request


def starts(policy: Autellix, program: str, at: float) -> Request:
    request = waits(policy, program, at)
    policy.scheduled(request, at, 0)
    return request


def level(policy: Autellix, request: Request, now: float) -> int:
    return int(policy.rank(request, now)[0])


def test_programs_served_less_go_first_and_first_come_first_served_within_a_level(
    policy: Autellix,
) -> None:
    for program, seconds in (("heavy", 3.5), ("middle", 2.5), ("light", 0.5), ("fresh", 0.0)):
        served(policy, program, seconds)
    waiting = [
        waits(policy, program, at)
        for program, at in (("heavy", 10.0), ("middle", 11.0), ("light", 13.0), ("fresh", 12.0))
    ]
    # Levels are [0, 1), [1, 3) and [3, ...): 2, 1, 0, 0; `fresh` arrived before `light`.
    assert order(policy, waiting, 13.0) == ["fresh", "light", "middle", "heavy"]


def test_attained_service_is_summed_over_calls_without_preempted_time(policy: Autellix) -> None:
    request = starts(policy, "p", 0.0)
    policy.preempted(request, 0.4)
    policy.scheduled(request, 5.0, 0)
    policy.finished(request, 5.5)
    # 0.4 + 0.5 s served is still the top level; another 0.9 s make 1.8 s, the next level.
    assert level(policy, waits(policy, "p", 6.0), 6.0) == 0
    served(policy, "p", 0.9)
    # It has waited 4.6 s and 3 * 1.8 = 5.4, so that the next call is promoted after 0.8 s.
    request = waits(policy, "p", 7.0)
    assert [level(policy, request, t) for t in (7.0, 7.7, 7.9)] == [1, 1, 0]


def test_a_running_call_is_demoted_when_its_quantum_is_used_up(policy: Autellix) -> None:
    request = starts(policy, "p", 10.0)
    assert [level(policy, request, t) for t in (10.0, 10.9, 11.0, 12.9, 13.0, 99.0)] == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip


def test_a_preempted_call_keeps_the_rest_of_its_quantum(policy: Autellix) -> None:
    request = starts(policy, "p", 0.0)
    policy.preempted(request, 0.75)
    policy.scheduled(request, 1.0, 0)
    assert [level(policy, request, t) for t in (1.2, 1.25)] == [0, 1]


def test_a_call_is_promoted_once_it_has_waited_beta_times_its_service(policy: Autellix) -> None:
    served(policy, "p", 2.0)
    request = waits(policy, "p", 10.0)
    # 3 * 2 s of service, so after 6 s of waiting.
    assert [level(policy, request, t) for t in (10.0, 15.9, 16.0)] == [1, 1, 0]
    assert [list(policy.woke(t)) for t in (15.9, 16.0, 20.0)] == [[], [request.id], []]


def test_waiting_of_earlier_calls_counts_towards_promotion(policy: Autellix) -> None:
    run(policy, turn("p", at=0.0), start=5.0, end=7.0)
    request = waits(policy, "p", 10.0)
    # It waited 5 s before and was served 2 s, so 1 s remains.
    assert [level(policy, request, t) for t in (10.9, 11.0)] == [1, 0]


def test_a_promoted_call_gets_a_new_quantum_and_its_service_is_counted_from_zero(
    policy: Autellix,
) -> None:
    served(policy, "p", 2.0)
    request = waits(policy, "p", 10.0)
    policy.scheduled(request, 17.0, 0)
    assert [level(policy, request, t) for t in (17.9, 18.0)] == [0, 1]
    policy.preempted(request, 18.5)
    # Since its promotion at 16 s it waited 1 s and was served 1.5 s; its program 2 s:
    # 3 * 3.5 - 1 = 9.5 s more.
    assert [level(policy, request, t) for t in (27.9, 28.0)] == [1, 0]


def test_only_a_call_on_a_strictly_lower_level_is_displaced_the_lowest_first(
    policy: Autellix,
) -> None:
    for program, seconds in (("middle", 2.0), ("heavy", 3.5)):
        served(policy, program, seconds)
    light, middle, heavy = (starts(policy, p, 10.0) for p in ("light", "middle", "heavy"))
    head = waits(policy, "new", 10.0)
    running = [heavy, light, middle]
    assert policy.displaced(head, running, 10.0) is heavy
    assert policy.displaced(head, [light], 10.0) is None
    assert policy.displaced(head, [light], 11.0) is light
    assert policy.displaced(head, [], 10.0) is None
    assert policy.victim(running, 10.0) is heavy


def test_kv_is_freed_and_a_preempted_turn_has_no_priority(policy: Autellix) -> None:
    assert run(policy, turn("a"), start=0.0, end=0.5).kind == "free"
    first, second = waits(policy, "x", 1.0), waits(policy, "y", 2.0)
    policy.scheduled(second, 2.0, 0)
    policy.preempted(second, 2.1)
    second.preempted = True
    assert policy.rank(first, 3.0) < policy.rank(second, 3.0)


def test_wake_ups_are_the_future_changes_of_level_each_once(policy: Autellix) -> None:
    served(policy, "starving", 2.0)
    waits(policy, "starving", 10.0)
    starts(policy, "running", 10.5)
    # Demotions at 11.5 and 13.5, promotion at 16.
    assert [policy.wake_s(t) for t in (10.5, 11.4, 11.5, 13.5, 16.0)] == [
        11.5, 11.5, 13.5, 16.0, None,
    ]  # fmt: skip


def test_a_finished_call_needs_no_wake_up(policy: Autellix) -> None:
    policy.finished(starts(policy, "p", 10.0), 10.5)
    assert policy.wake_s(10.5) is None


def test_repeated_decisions_change_no_state(policy: Autellix) -> None:
    served(policy, "p", 2.0)
    request = waits(policy, "p", 10.0)
    running = starts(policy, "q", 10.0)
    for _ in range(3):
        policy.wake_s(30.0)
        policy.rank(request, 30.0)
        policy.displaced(request, [running], 30.0)
    assert level(policy, request, 15.9) == 1
    assert level(policy, running, 10.5) == 0


def test_a_program_that_has_ended_is_forgotten(policy: Autellix) -> None:
    served(policy, "p", 50.0)
    policy.program_ended("p", 50.0)
    assert level(policy, waits(policy, "p", 60.0), 60.0) == 0


def test_by_default_there_are_eight_levels_whose_quanta_double_from_one_second() -> None:
    policy = Autellix(COSTS)
    request = starts(policy, "p", 0.0)
    # Quanta of 1, 2, 4 … 64 s end at 1, 3, 7, 15, 31, 63 and 127 s.
    ends = [2.0**n - 1 for n in range(1, 8)]
    assert [level(policy, request, end) for end in ends] == [1, 2, 3, 4, 5, 6, 7]
    assert [level(policy, request, end - 0.01) for end in ends] == [0, 1, 2, 3, 4, 5, 6]
    assert level(policy, request, 1e6) == 7


def test_by_default_a_call_is_promoted_after_ten_times_its_service() -> None:
    policy = Autellix(COSTS)
    served(policy, "p", 2.0)
    request = waits(policy, "p", 10.0)
    assert [level(policy, request, t) for t in (29.9, 30.0)] == [1, 0]


@pytest.mark.parametrize(
    ("quanta_s", "beta"), [((0.0,), 3.0), ((1.0, -1.0), 3.0), ((1.0,), 0.0), ((1.0,), -1.0)]
)
def test_quanta_and_beta_must_be_positive(quanta_s: tuple[float, ...], beta: float) -> None:
    with pytest.raises(ValueError, match="quanta_s and beta must be above 0"):
        Autellix(COSTS, quanta_s=quanta_s, beta=beta)
    Autellix(COSTS, quanta_s=(0.1,), beta=0.1)


def test_service_before_a_promotion_counts_for_the_calls_that_follow(policy: Autellix) -> None:
    served(policy, "p", 2.0)
    request = starts(policy, "p", 10.0)
    policy.preempted(request, 10.8)
    # Promoted after 3 · (2 + 0.8) = 8.4 s, at 19.2; it then waits 0.8 s and is served 0.4 s.
    policy.scheduled(request, 20.0, 0)
    policy.finished(request, 20.4)
    # 2 + 0.8 + 0.4 = 3.2 s of service is the last level; 3 · 3.2 - 0.8 = 8.8 s until promotion.
    following = waits(policy, "p", 30.0)
    assert [level(policy, following, t) for t in (30.0, 38.7, 38.9)] == [2, 2, 0]


def test_service_of_a_cancelled_call_counts_and_the_last_call_ends_the_account(
    policy: Autellix,
) -> None:
    policy.aborted(starts(policy, "p", 0.0), 2.0)
    assert level(policy, waits(policy, "p", 3.0), 3.0) == 1
    served(policy, "q", 2.0)
    run(policy, turn("q", index=1, at=2.0, last=True), start=2.0, end=5.0)
    assert level(policy, waits(policy, "q", 6.0), 6.0) == 0


def test_calls_of_one_level_and_arrival_are_ordered_by_id(policy: Autellix) -> None:
    first, second = waits(policy, "a", 1.0), waits(policy, "b", 1.0)
    assert policy.rank(first, 2.0) < policy.rank(second, 2.0)
    for request in (first, second):
        policy.scheduled(request, 2.0, 0)
    assert policy.victim([first, second], 2.5) is second
