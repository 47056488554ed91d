"""The policies fcfs, program-fcfs and clairvoyant."""

from __future__ import annotations

import pytest
from policy_turns import COSTS, SMALL, TIERED, held, order, run, turn

from servers.policies.base import Future
from servers.policies.clairvoyant import MARGIN_S, Clairvoyant
from servers.policies.fcfs import Fcfs
from servers.policies.program_fcfs import ProgramFcfs


def test_fcfs_orders_by_turn_arrival_and_program_fcfs_by_program_arrival() -> None:
    waiting = [
        turn("new", at=1.0, program_at=1.0),
        turn("old", at=9.0, program_at=0.0),
        turn("evicted", at=2.0, program_at=2.0, preempted=True),
        turn("kept", at=10.0, program_at=10.0, pinned=True),
    ]
    assert order(Fcfs(COSTS), waiting) == ["evicted", "new", "old", "kept"]
    assert order(ProgramFcfs(COSTS), waiting) == ["evicted", "old", "new", "kept"]


@pytest.mark.parametrize("policy", [Fcfs(COSTS), ProgramFcfs(COSTS)])
def test_baselines_free_all_kv_and_preempt_the_latest_admitted_turn(
    policy: Fcfs | ProgramFcfs,
) -> None:
    assert run(policy, turn(tokens=50_000), start=0.0, end=1.0).kind == "free"
    first, second = turn("a"), turn("b")
    assert policy.victim([first, second], 0.0) is second
    assert policy.displaced(turn("c"), [first, second], 0.0) is None
    assert policy.wake_s(0.0) is None


@pytest.mark.parametrize(
    ("gap_s", "ttl_s"),
    [
        # Three tenths of the device for 10 s are as much as the whole device for 3 s.
        (0.5, 0.5 + MARGIN_S),
        (9.9, 9.9 + MARGIN_S),
        (10.0, 0.0),
        (None, 0.0),
    ],
)
def test_clairvoyant_pins_for_exactly_the_gap_if_its_room_costs_less_than_the_rebuild(
    gap_s: float | None, ttl_s: float
) -> None:
    policy = Clairvoyant(SMALL)
    request = turn(tokens=3000)
    policy.foresee(request, Future(gap_s, 3000, 100))
    assert run(policy, request, start=0.0, end=1.0).ttl_s == ttl_s


def test_clairvoyant_orders_turns_without_kv_by_the_least_remaining_work() -> None:
    policy = Clairvoyant(COSTS)
    # Seconds: 1 + 100 * 0.001 = 1.1; 0.5 + 0.9 = 1.4; 0.1 + 0.2 = 0.3.
    work = {"long prompt": (1000, 100), "long answer": (500, 900), "short": (100, 200)}
    waiting = []
    for program, (prompt, output) in work.items():
        request = turn(program)
        policy.foresee(request, Future(None, prompt, output))
        waiting.append(request)
    assert order(policy, waiting) == ["short", "long prompt", "long answer"]
    assert policy.victim(waiting, 0.0).program_id == "long answer"
    waiting[1].pinned = True
    assert order(policy, waiting) == ["long answer", "short", "long prompt"]


def test_clairvoyant_releases_the_pins_needed_last_first() -> None:
    pins = [held(turn(p), until=t) for p, t in (("soon", 2.0), ("late", 9.0), ("later", 5.0))]
    released = [p.program_id for p in Clairvoyant(TIERED).reclaim(pins, turn("z"), 0.0)]
    assert released == ["late", "later", "soon"]
