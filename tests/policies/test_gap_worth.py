"""The time for which KV is worth its room, worked by hand and against every candidate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.policies.estimates.gap_worth import BUCKETS, GapWorth

times_s = st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=60)


def worth_of(samples_s: list[float]) -> GapWorth:
    worth = GapWorth()
    for seconds in samples_s:
        worth.add(seconds)
    return worth


def value(samples_s: list[float], t: float, cost_per_s: float) -> float:
    """Return P(S <= t) - a * E[min(S, t)]."""
    within = sum(s <= t for s in samples_s)
    return (within - cost_per_s * sum(min(s, t) for s in samples_s)) / len(samples_s)


@pytest.mark.parametrize(
    ("cost_per_s", "ttl_s"),
    [
        # Three calls of 1 s and one of 100 s. Until 1 s: 3/4 - a * 1. Until 100 s: 1 - a * 25.75.
        (0.0, 100.0),
        (0.0100, 100.0),  # 0.7425 against 0.7400
        (0.0102, 1.0),  # 0.73735 against 0.7398
        (0.74, 1.0),
        (0.76, 0.0),  # 3/4 - 0.76 < 0
    ],
)
def test_kv_is_held_while_the_calls_that_end_save_more_than_the_room_costs(
    cost_per_s: float, ttl_s: float
) -> None:
    assert worth_of([1.0, 1.0, 1.0, 100.0]).best_ttl_s(cost_per_s) == ttl_s


def test_without_calls_nothing_is_held() -> None:
    assert GapWorth().best_ttl_s(0.001) == 0.0


@given(samples_s=times_s, cost_per_s=st.floats(1e-6, 10.0))
def test_no_end_of_a_bucket_is_worth_more_than_the_time_that_is_chosen(
    samples_s: list[float], cost_per_s: float
) -> None:
    """The end of a bucket is the longest time in it. Buckets grow by 2^(1/4)."""
    ends_s = {math.floor(4 * math.log2(s / 1e-3)): s for s in sorted(samples_s)}
    chosen_s = worth_of(samples_s).best_ttl_s(cost_per_s)
    best = max(0.0, *(value(samples_s, t, cost_per_s) for t in ends_s.values()))
    assert value(samples_s, chosen_s, cost_per_s) == pytest.approx(best, abs=1e-9)


@given(samples_s=times_s, cost_per_s=st.floats(1e-6, 10.0))
def test_a_dearer_room_is_never_held_longer(samples_s: list[float], cost_per_s: float) -> None:
    worth = worth_of(samples_s)
    assert worth.best_ttl_s(2 * cost_per_s) <= worth.best_ttl_s(cost_per_s)


def test_calls_of_months_and_of_no_time_are_counted() -> None:
    worth = worth_of([0.0, 1e8])
    assert worth.samples == 2
    assert worth.best_ttl_s(0.0) == 1e8
    assert len(worth._counts) == BUCKETS
