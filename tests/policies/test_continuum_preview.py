"""The public fork, and ContextServe, which shares its queue order and its choice of victims."""

from __future__ import annotations

import math

import pytest
from policy_turns import COSTS, held, order, run, tool_call, turn

from servers.policies.context_serve import ContextServe
from servers.policies.continuum_preview import ContinuumPreview


def test_after_an_unknown_tool_the_whole_request_is_pinned_for_two_seconds() -> None:
    retention = run(ContinuumPreview(COSTS), turn(), start=0.0, end=1.0)
    assert (retention.kind, retention.ttl_s, retention.whole_request) == ("pin", 2.0, True)


@pytest.mark.parametrize(("seconds", "kind"), [((1.0, 3.0), "pin"), ((1.0, 3.1), "free")])
def test_turns_are_pinned_if_their_tool_takes_at_most_two_seconds_on_average(
    seconds: tuple[float, float], kind: str
) -> None:
    policy = ContinuumPreview(COSTS)
    for call, s in enumerate(seconds):
        tool_call(policy, f"p{call}", "grep", s)
    assert run(policy, turn("x", tools=("grep",)), start=0.0, end=1.0).kind == kind


def test_the_tool_is_the_literal_first_word() -> None:
    policy = ContinuumPreview(COSTS)
    tool_call(policy, "a", "pytest", 30.0)
    retention = run(policy, turn("x", tools=("cd", "pytest")), start=0.0, end=1.0)
    assert (retention.kind, retention.why["tool"]) == ("pin", "cd")


def test_turns_without_tool_calls_and_last_turns_are_freed() -> None:
    policy = ContinuumPreview(COSTS)
    assert run(policy, turn("a", tools=()), start=0.0, end=1.0).kind == "free"
    assert run(policy, turn("b", last=True), start=0.0, end=1.0).kind == "free"


def test_waiting_turns_are_ordered_by_pinned_then_program_arrival_even_if_preempted() -> None:
    waiting = [
        turn("new", at=0.5, program_at=0.5, preempted=True),
        turn("old", at=9.0, program_at=0.0),
        turn("kept", at=9.0, program_at=5.0, pinned=True),
    ]
    assert order(ContinuumPreview(COSTS), waiting) == ["kept", "old", "new"]


def test_a_preempted_turn_precedes_other_turns_of_its_program() -> None:
    policy = ContinuumPreview(COSTS)
    other, preempted = turn("a"), turn("a", preempted=True)
    assert policy.rank(preempted, 0.0) < policy.rank(other, 0.0)


def test_the_victim_is_the_newest_program_that_continues_else_the_newest() -> None:
    policy = ContinuumPreview(COSTS)
    old, new = turn("old", program_at=0.0), turn("new", program_at=1.0)
    ending = turn("ending", program_at=2.0, last=True)
    assert policy.victim([old, ending, new], 0.0) is new
    assert policy.victim([turn("first", program_at=0.0, last=True), ending], 0.0) is ending
    unknown = turn("unknown", program_at=3.0, last=None)
    assert policy.victim([old, unknown, new], 0.0) is unknown


def test_pins_are_evicted_with_the_latest_expiry_first() -> None:
    pins = [held(turn(p), until=t) for p, t in (("a", 4.0), ("b", 6.0), ("c", 5.0))]
    assert [p.program_id for p in ContinuumPreview(COSTS).reclaim(pins, turn("z"), 0.0)] == [
        "b",
        "c",
        "a",
    ]


def test_overlapping_turns_of_one_program_are_accepted() -> None:
    policy = ContinuumPreview(COSTS)
    twins = [turn("same"), turn("same", index=1), turn("same", index=2)]
    for twin in twins:
        policy.arrived(twin, 0.0)
    for twin in twins:
        assert policy.finished(twin, 1.0).kind == "pin"
    # The gap counts from the latest finished turn.
    policy.arrived(turn("same", index=3, at=1.5), 1.5)
    assert policy.finished(turn("other"), 2.0).why["mean_s"] == 0.5


@pytest.mark.parametrize(
    ("tools", "kind", "ttl_s"),
    [
        (("ls",), "pin", 3.0),
        (("cd", "cat"), "pin", 3.0),
        (("pytest",), "free", 0.0),
        (("cd", "make"), "free", 0.0),
        (("cat", "pip"), "free", 0.0),
        # On neither list: Continuum's default TTL, ln 3 for 3 s of rebuilding.
        (("git",), "pin", math.log(3)),
        (("ls", "git"), "pin", math.log(3)),
        ((), "pin", math.log(3)),
    ],
)
def test_context_serve_pins_after_fast_tools_frees_after_slow_ones_and_else_uses_a_ttl(
    tools: tuple[str, ...], kind: str, ttl_s: float
) -> None:
    retention = run(ContextServe(COSTS), turn(tokens=3000, tools=tools), start=0.0, end=1.0)
    assert (retention.kind, retention.ttl_s) == (kind, pytest.approx(ttl_s))


def test_context_serve_learns_tool_times_of_all_three_kinds() -> None:
    policy = ContextServe(COSTS)
    for call, tool in enumerate(("ls", "make", "git")):
        tool_call(policy, f"p{call}", tool, 1.0)
    assert len(policy.model.all_tools) == 3


def test_context_serve_shares_the_forks_queue_and_victims() -> None:
    policy = ContextServe(COSTS)
    waiting = [turn("old", program_at=0.0), turn("kept", program_at=5.0, pinned=True)]
    assert order(policy, waiting) == ["kept", "old"]
    new, ending = turn("new", program_at=1.0), turn("ending", program_at=2.0, last=True)
    assert policy.victim([new, ending], 0.0) is new


def test_a_tool_without_samples_counts_as_one_that_takes_no_time() -> None:
    why = run(ContinuumPreview(COSTS), turn("p", tools=("ls",)), start=0.0, end=1.0).why
    assert why == {"tool": "ls", "mean_s": 0.0, "samples": 0}
