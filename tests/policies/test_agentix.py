"""Agentix with three levels: bounds of 1 s and 3 s, quanta of 1 s, 2 s and infinity, beta = 3."""

from __future__ import annotations

import pytest
from policy_turns import COSTS, order, run, turn

from servers.policies.agentix import Agentix
from servers.policies.base import Costs, Request
from servers.variants import make_policy, variant


@pytest.fixture
def policy() -> Agentix:
    return Agentix(COSTS, bounds=(1.0, 3.0), quanta=(1.0, 2.0), beta=3.0, step_s=1.0)


def served(policy: Agentix, program: str, seconds: float) -> None:
    run(policy, turn(program, at=0.0), start=0.0, end=seconds)


def waits(policy: Agentix, program: str, at: float) -> Request:
    request = turn(program, index=1, at=at, program_at=0.0)
    policy.arrived(request, at)
    return request


def starts(policy: Agentix, program: str, at: float) -> Request:
    request = waits(policy, program, at)
    policy.scheduled(request, at, 0)
    return request


def place(policy: Agentix, request: Request, now: float) -> tuple[int, float]:
    level, entered, _ = policy.rank(request, now)
    return level, entered


def test_a_call_enters_the_level_of_its_programs_service_at_the_end(policy: Agentix) -> None:
    for program, seconds in (("heavy", 3.5), ("middle", 2.5), ("light", 0.5)):
        served(policy, program, seconds)
    waiting = [
        waits(policy, program, at)
        for program, at in (("heavy", 10.0), ("middle", 11.0), ("light", 13.0), ("fresh", 12.0))
    ]
    assert [place(policy, r, 13.0) for r in waiting] == [(2, 10.0), (1, 11.0), (0, 13.0), (0, 12.0)]
    assert order(policy, waiting, 13.0) == ["fresh", "light", "middle", "heavy"]


def test_a_used_up_quantum_appends_the_call_to_the_end_of_the_next_level(policy: Agentix) -> None:
    request = starts(policy, "p", 10.0)
    # The quantum of the top level is used up at 11 s, that of the next one at 13 s.
    assert [place(policy, request, t) for t in (10.9, 11.0, 12.9, 13.0, 99.0)] == [
        (0, 10.0), (1, 11.0), (1, 11.0), (2, 13.0), (2, 13.0),
    ]  # fmt: skip


def test_within_a_level_the_time_of_entry_decides_and_not_the_arrival(policy: Agentix) -> None:
    early = starts(policy, "early", 10.0)
    served(policy, "middle", 2.0)
    late = waits(policy, "middle", 10.5)
    policy.preempted(early, 11.5)
    early.preempted = True
    # `early` arrived first but entered the level at 11 s, `late` at 10.5 s.
    assert place(policy, early, 11.5) == (1, 11.0)
    assert order(policy, [early, late], 11.5) == ["middle", "early"]


def test_a_preempted_call_keeps_its_place_and_the_rest_of_its_quantum(policy: Agentix) -> None:
    request = starts(policy, "p", 0.0)
    policy.preempted(request, 0.75)
    assert place(policy, request, 0.75) == (0, 0.0)
    policy.scheduled(request, 1.0, 0)
    assert [place(policy, request, t) for t in (1.2, 1.25)] == [(0, 0.0), (1, 1.25)]


def test_a_call_enters_the_top_level_once_it_has_waited_beta_times_its_service(
    policy: Agentix,
) -> None:
    served(policy, "p", 2.0)
    request = waits(policy, "p", 10.0)
    # 3 * 2 s of service, so at 16 s.
    assert [place(policy, request, t) for t in (15.9, 16.0, 20.0)] == [
        (1, 10.0), (0, 16.0), (0, 16.0),
    ]  # fmt: skip
    assert policy.wake_s(10.0) == 16.0
    assert [list(policy.woke(t)) for t in (15.9, 16.0, 20.0)] == [[], [request.id], []]


def test_a_promoted_call_gets_a_new_quantum_and_counts_from_zero(policy: Agentix) -> None:
    served(policy, "p", 2.0)
    request = waits(policy, "p", 10.0)
    policy.scheduled(request, 17.0, 0)
    assert [place(policy, request, t) for t in (17.9, 18.0)] == [(0, 16.0), (1, 18.0)]
    policy.preempted(request, 18.5)
    # Since its promotion it waited 1 s and was served 1.5 s, its program 2 s: 3 * 3.5 - 1 = 9.5 s.
    assert [place(policy, request, t) for t in (27.9, 28.0)] == [(1, 18.0), (0, 28.0)]


def test_waiting_and_service_of_earlier_calls_count_for_the_program(policy: Agentix) -> None:
    run(policy, turn("p", at=0.0), start=5.0, end=7.0)
    # It waited 5 s and was served 2 s: 3 * 2 - 5 = 1 s more.
    request = waits(policy, "p", 10.0)
    assert [place(policy, request, t) for t in (10.9, 11.0)] == [(1, 10.0), (0, 11.0)]


def test_a_call_in_front_displaces_the_running_call_that_is_furthest_behind(
    policy: Agentix,
) -> None:
    served(policy, "middle", 2.0)
    served(policy, "heavy", 3.5)
    light, middle, heavy = (starts(policy, p, 10.0) for p in ("light", "middle", "heavy"))
    head = waits(policy, "new", 10.5)
    running = [heavy, light, middle]
    assert policy.displaced(head, running, 10.5) is heavy
    assert policy.victim(running, 10.5) is heavy
    assert policy.displaced(head, [light], 10.5) is None
    assert policy.displaced(head, [light], 11.0) is light
    assert policy.displaced(head, [], 10.5) is None


def test_a_call_that_waited_in_a_level_displaces_one_that_is_demoted_into_it(
    policy: Agentix,
) -> None:
    served(policy, "middle", 2.0)
    running = starts(policy, "light", 10.0)
    head = waits(policy, "middle", 10.5)
    assert policy.displaced(head, [running], 10.9) is None
    assert policy.displaced(head, [running], 11.0) is running


def test_the_unit_is_a_decode_step_of_the_device_by_default() -> None:
    costs = Costs(prefill_s=COSTS.prefill_s, decode_step_s=lambda _turns, _tokens: 0.25)
    policy = Agentix(costs)
    request = starts(policy, "p", 10.0)
    # Quanta of 1, 2, 4, 8, 16 and 32 steps end after 1, 3, 7, 15, 31 and 63 steps.
    times = (10.24, 10.25, 10.75, 11.75, 13.75, 17.75, 25.75, 999.0)
    assert [place(policy, request, t)[0] for t in times] == [0, 1, 2, 3, 4, 5, 6, 6]


def test_the_state_of_a_program_ends_with_it(policy: Agentix) -> None:
    served(policy, "p", 2.0)
    policy.program_ended("p", 5.0)
    assert place(policy, waits(policy, "p", 6.0), 6.0) == (0, 6.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agentix(bounds=[1, 2])", "bounds has 2 values and quanta 6; give one of each"),
        ("agentix(bounds=[2, 1], quanta=[1, 1])", "bounds must be above 0 and ascend"),
        ("agentix(beta=0)", "quanta, beta and step_s must be above 0"),
        ("agentix(step_s=0)", "quanta, beta and step_s must be above 0"),
    ],
)
def test_wrong_arguments_are_refused(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        make_policy(variant(text), COSTS)
    assert type(refused.value).__name__ == "InvalidPlugin"
