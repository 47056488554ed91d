"""Continuum v1: the Bernstein bound and its TTL, compared with manual calculations."""

from __future__ import annotations

import math

import pytest
from policy_turns import COSTS, run, tool_call, turn

from servers.policies.continuum_v1 import ContinuumV1, bernstein_bound_s
from servers.policies.estimates.moments import Moments


def moments(*values: float) -> Moments:
    result = Moments()
    for value in values:
        result.add(value)
    return result


def test_variance_is_over_n_minus_one_and_zero_for_a_single_sample() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, over 2.
    assert (moments(1.0, 2.0, 6.0).mean, moments(1.0, 2.0, 6.0).variance) == (3.0, 7.0)
    assert moments(4.0).variance == 0.0


def test_the_bound_adds_the_deviation_and_the_longest_time_to_the_mean() -> None:
    # delta = 3 / e^2, so that ln(3 / delta) = 2. Samples 1 and 3: mean 2, variance 2.
    # 2 + sqrt(2 * 2 * 2 / 2) + 3 * 5 * 2 / 2 = 2 + 2 + 15.
    assert bernstein_bound_s(moments(1.0, 3.0), 3 / math.e**2, 5.0) == pytest.approx(19.0)


def policy() -> ContinuumV1:
    return ContinuumV1(COSTS, n=2, delta=3 / math.e**2, longest_s=5.0, alpha=0.5)


def test_below_n_tool_times_the_ttl_is_the_default() -> None:
    # 2^2 / 2 * (1 + 0.5 * 0) = 2 before any program has finished.
    assert run(policy(), turn(), start=0.0, end=1.0).ttl_s == 2.0


def test_more_turns_in_the_workload_lengthen_the_ttl() -> None:
    warm = policy()
    tool_call(warm, "two turns", "ls", 1.0)
    # One tool time is below N = 2: bound 2 s; AvgTurns = 2: 4 / 2 * (1 + 0.5 * 2) = 4.
    assert run(warm, turn(), start=0.0, end=1.0).ttl_s == 4.0


def test_the_bound_covers_all_tools_from_n_times_on_and_the_tool_from_n_of_its_own() -> None:
    warm = policy()
    tool_call(warm, "a", "ls", 1.0)
    tool_call(warm, "b", "ls", 3.0)
    # |S| = N = 2, of `ls` too: bound 19 s, AvgTurns 2: 4 / 19 * 2.
    own = run(warm, turn("x", tools=("ls",)), start=0.0, end=1.0)
    assert (own.why["stage"], own.ttl_s) == ("tool", pytest.approx(8 / 19))
    tool_call(warm, "c", "make", 5.0)
    # 1, 3, 5 over all: mean 3, variance 4: 3 + sqrt(2 * 4 * 2 / 3) + 3 * 5 * 2 / 3 = 15.309.
    other = run(warm, turn("y", tools=("make",)), start=0.0, end=1.0)
    assert (other.why["stage"], other.why["samples"]) == ("all-tools", 3)
    assert other.why["bound_s"] == pytest.approx(13 + math.sqrt(16 / 3))
    assert other.ttl_s == pytest.approx(8 / (13 + math.sqrt(16 / 3)))


def test_last_turns_are_freed() -> None:
    assert run(policy(), turn(last=True), start=0.0, end=1.0).kind == "free"
