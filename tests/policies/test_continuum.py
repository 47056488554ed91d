"""Continuum v3: TTL, its three stages, and the orders of waiting turns and of released pins."""

from __future__ import annotations

import math

import pytest
from policy_turns import COSTS, TIERED, held, order, run, tool_call, turn

from servers.policies.continuum import Continuum
from servers.policies.estimates.ttl_model import default_ttl_s
from servers.policies.static_ttl import StaticTtl


def warm(k: int, **tools: tuple[float, int]) -> Continuum:
    """Return a policy that has seen each tool's (duration, number of calls)."""
    policy = Continuum(COSTS, k=k)
    for tool, (seconds, calls) in tools.items():
        for call in range(calls):
            tool_call(policy, f"{tool}{call}", tool, seconds)
    return policy


def test_default_ttl_is_the_log_of_the_benefit() -> None:
    # (1 - e^-t) * B - t: the derivative e^-t * B - 1 vanishes at ln B.
    assert default_ttl_s(math.e) == 1.0
    assert default_ttl_s(1.0) == 0.0
    assert default_ttl_s(0.2) == 0.0


def test_default_ttl_is_where_the_objective_is_largest() -> None:
    def gain(ttl_s: float) -> float:
        return (1 - math.exp(-ttl_s)) * 7 - ttl_s

    best = default_ttl_s(7)
    assert gain(best) > max(gain(best - 0.01), gain(best + 0.01))


def test_before_any_tool_call_the_ttl_is_the_default() -> None:
    # 3000 tokens take 3 s to rebuild and no turn has queued, so ln 3.
    retention = run(Continuum(COSTS), turn(tokens=3000), start=0.0, end=1.0)
    assert retention.ttl_s == pytest.approx(math.log(3))
    assert not retention.whole_request
    assert retention.why == {
        "tool": "ls",
        "stage": "default",
        "samples": 0,
        "T_bar_s": 0.0,
        "eta": 1.0,
        "rebuild_s": 3.0,
    }


def test_a_short_context_without_queueing_is_not_pinned() -> None:
    assert run(Continuum(COSTS), turn(tokens=900), start=0.0, end=1.0).kind == "free"


def test_the_default_ttl_applies_up_to_k_tool_times() -> None:
    at_k = run(warm(3, ls=(0.5, 3)), turn(tokens=3000, tools=("new",)), start=0.0, end=1.0)
    assert (at_k.why["stage"], at_k.why["samples"]) == ("default", 3)
    # Four times 0.5 s, B = 3: all tools return within 0.5 s.
    beyond = run(warm(3, ls=(0.5, 4)), turn(tokens=3000, tools=("new",)), start=0.0, end=1.0)
    assert (beyond.why["stage"], beyond.why["samples"]) == ("all-tools", 4)
    assert beyond.ttl_s == 0.5


def test_up_to_k_times_of_a_tool_all_tools_decide_and_then_its_own_times() -> None:
    # All: 0.5 s six times, 2 s three times; B = 3: 6/9 * 3 - 0.5 = 1.5 beats 3 - 2 = 1.
    at_k = run(
        warm(3, ls=(0.5, 6), make=(2.0, 3)),
        turn(tokens=3000, tools=("make",)),
        start=0.0,
        end=1.0,
    )
    assert (at_k.why["stage"], at_k.ttl_s) == ("all-tools", 0.5)
    own = run(
        warm(3, ls=(0.5, 6), make=(2.0, 4)),
        turn(tokens=3000, tools=("make",)),
        start=0.0,
        end=1.0,
    )
    assert (own.why["stage"], own.why["samples"], own.ttl_s) == ("tool", 4, 2.0)


def test_k_is_100_by_default() -> None:
    policy = Continuum(COSTS)
    for call in range(100):
        tool_call(policy, f"p{call}", "ls", 0.5)
    assert run(policy, turn("x", tokens=3000), start=0.0, end=1.0).why["stage"] == "default"
    tool_call(policy, "one more", "ls", 0.5)
    assert run(policy, turn("y", tokens=3000), start=0.0, end=1.0).why["stage"] == "tool"


def test_for_a_turn_without_a_known_tool_all_tools_decide() -> None:
    policy = warm(3, ls=(0.5, 5))
    retention = run(policy, turn("x", tokens=3000, tools=()), start=0.0, end=1.0)
    assert (retention.why["stage"], retention.why["tool"]) == ("all-tools", None)


def test_with_an_offload_tier_the_rebuild_time_is_the_reload_time() -> None:
    # 30,000 tokens reload in 3 s.
    retention = run(Continuum(TIERED), turn(tokens=30_000), start=0.0, end=1.0)
    assert retention.why["rebuild_s"] == 3.0


def test_a_cd_before_the_command_is_not_its_tool() -> None:
    policy = warm(3, pytest=(2.0, 4))
    retention = run(policy, turn("x", tokens=3000, tools=("cd", "pytest")), start=0.0, end=1.0)
    assert (retention.why["stage"], retention.why["tool"]) == ("tool", "pytest")


def test_queueing_delays_count_only_for_turns_whose_kv_was_evicted() -> None:
    policy = Continuum(COSTS)
    first = turn("a", at=0.0)
    pinned = turn("a", index=1, at=0.0, pinned=True)
    resumed = turn("b", index=1, at=0.0, preempted=True)
    for request in (first, pinned, resumed):
        policy.scheduled(request, 50.0, 0)
    assert policy.model.delays.mean_s == 0.0
    policy.scheduled(turn("c", index=1, at=0.0), 4.0, 0)
    policy.scheduled(turn("d", index=2, at=0.0), 8.0, 500)
    assert policy.model.delays.mean_s == 6.0


def test_queueing_delays_are_averaged_over_a_window() -> None:
    policy = Continuum(COSTS, window=2)
    for delay in (100.0, 1.0, 3.0):
        policy.scheduled(turn("a", index=1, at=0.0), delay, 0)
    assert policy.model.delays.mean_s == 2.0


def test_the_queueing_delay_is_weighted_by_eta() -> None:
    policy = warm(1, ls=(0.5, 2))
    policy.scheduled(turn("q", index=1, at=0.0), 10.0, 0)
    # All programs had 2 turns: eta = 1, B = 10 + 0.1, so a pin of 0.5 s pays.
    kept = run(policy, turn("x", tokens=100), start=0.0, end=1.0)
    assert (kept.why["eta"], kept.why["T_bar_s"], kept.ttl_s) == (1.0, 10.0, 0.5)
    # Then a heavy tail: 400 programs of one turn and one of 20. eta < 0, B <= 0.
    for program in range(400):
        run(policy, turn(f"short{program}", last=True, tools=()), start=0.0, end=1.0)
    for index in range(20):
        long = turn("long", index=index, at=float(index), last=index == 19, pinned=True)
        run(policy, long, start=float(index), end=index + 0.5)
    freed = run(policy, turn("y", tokens=100), start=0.0, end=1.0)
    eta = freed.why["eta"]
    assert isinstance(eta, float)
    assert eta < 0
    assert freed.kind == "free"


@pytest.mark.parametrize("policy", [Continuum(COSTS), StaticTtl(COSTS)])
def test_last_turns_are_freed_and_so_are_turns_without_tools_that_may_be_the_last(
    policy: Continuum | StaticTtl,
) -> None:
    assert run(policy, turn(tokens=9000, last=True), start=0.0, end=1.0).kind == "free"
    unknown = turn(tokens=9000, last=None, tools=())
    assert run(policy, unknown, start=0.0, end=1.0).kind == "free"
    calls = turn(tokens=9000, last=None, tools=("ls",))
    assert run(policy, calls, start=0.0, end=1.0).kind == "pin"


def test_waiting_turns_are_ordered_by_preempted_then_pinned_then_program_arrival() -> None:
    waiting = [
        turn("new", at=1.0, program_at=1.0),
        turn("old", at=9.0, program_at=0.0),
        turn("kept", at=9.0, program_at=5.0, pinned=True),
        turn("evicted", at=2.0, program_at=6.0, preempted=True),
        turn("evicted and kept", at=2.0, program_at=7.0, preempted=True, pinned=True),
    ]
    assert order(Continuum(COSTS), waiting) == [
        "evicted and kept",
        "evicted",
        "kept",
        "old",
        "new",
    ]


def test_static_ttl_pins_kv_but_gives_pinned_turns_no_priority() -> None:
    waiting = [turn("old", program_at=0.0), turn("kept", program_at=5.0, pinned=True)]
    assert order(StaticTtl(COSTS), waiting) == ["old", "kept"]


def test_static_ttl_always_uses_the_default_ttl_for_every_tool() -> None:
    policy = StaticTtl(COSTS)
    for call in range(200):
        tool_call(policy, f"p{call}", "make", 30.0)
    # Rebuilding takes 3 s, and no turn was delayed, since each returned to its pin.
    retention = run(policy, turn("x", tokens=3000, tools=("make",)), start=0.0, end=1.0)
    assert retention.ttl_s == pytest.approx(math.log(3))


def test_pins_are_evicted_with_the_latest_program_arrival_first() -> None:
    pins = [held(turn(p, program_at=at)) for p, at in (("a", 1.0), ("c", 3.0), ("b", 2.0))]
    released = Continuum(COSTS).reclaim(pins, turn("z"), 0.0)
    assert [pin.program_id for pin in released] == ["c", "b", "a"]


def test_pins_are_evicted_only_in_a_deadlock_by_default() -> None:
    assert Continuum(COSTS).reclaim_when == "stuck"
    assert Continuum(COSTS, reclaim_when="pressure").reclaim_when == "pressure"
