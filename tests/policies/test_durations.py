"""Eq. 2 of Continuum v3: worked examples, and a comparison with exhaustive search."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.policies.estimates.durations import MAX_SAMPLES, MIN_BLOCK_LIMIT, Durations


def of(*seconds: float) -> Durations:
    durations = Durations()
    for s in seconds:
        durations.add(s)
    return durations


@pytest.mark.parametrize(
    ("samples", "benefit_s", "ttl_s"),
    [
        # P(t) * B - t for t = 0, 1, 2, 10: 0, 4/3 - 1 = 0.33, 8/3 - 2 = 0.67, 4 - 10 = -6.
        ((1.0, 2.0, 10.0), 4.0, 2.0),
        # With B = 40: 0, 12.3, 24.7, 30.
        ((1.0, 2.0, 10.0), 40.0, 10.0),
        # With B = 2: 0, -0.33, -0.67, -8: recomputing is cheaper than waiting.
        ((1.0, 2.0, 10.0), 2.0, 0.0),
        # Repeated samples: P(1) = 2/4, so 0.5 * 3 - 1 = 0.5 beats 3 - 4 = -1.
        ((1.0, 1.0, 4.0, 4.0), 3.0, 1.0),
        # B = 2 over 1, 2: 0, 0.5 * 2 - 1 = 0, 2 - 2 = 0: the smallest of equal ones.
        ((1.0, 2.0), 2.0, 0.0),
        # B = 4 over 1, 3: 0, 2 - 1 = 1, 4 - 3 = 1: a tie between two samples.
        ((1.0, 3.0), 4.0, 1.0),
        # A tool that returns at once needs no TTL: P(0) = 1.
        ((0.0, 0.0), 5.0, 0.0),
        # P(0) = 1/2 gives 2 without any pin; 4 - 3 = 1 is less.
        ((0.0, 3.0), 4.0, 0.0),
        # P(0) = 1/2 gives 2; 4 - 1 = 3 is more.
        ((0.0, 1.0), 4.0, 1.0),
        ((1.0,), 0.0, 0.0),
        ((1.0,), -3.0, 0.0),
        ((), 5.0, 0.0),
    ],
)
def test_the_best_ttl_has_the_largest_utility(
    samples: tuple[float, ...], benefit_s: float, ttl_s: float
) -> None:
    assert of(*samples).best_ttl_s(benefit_s) == ttl_s


def test_share_within_counts_equal_samples() -> None:
    durations = of(1.0, 1.0, 3.0, 5.0)
    assert [durations.share_within(t) for t in (0.5, 1.0, 4.0, 5.0)] == [0.0, 0.5, 0.75, 1.0]
    assert of().share_within(1.0) == 0.0


quarters = st.integers(0, 4000).map(lambda n: n / 64)


@given(
    st.lists(st.tuples(st.lists(quarters, max_size=40), st.integers(-2, 300)), max_size=20),
    st.integers(0, 3),
)
def test_the_best_ttl_beats_every_other_sample_however_samples_and_queries_interleave(
    rounds: list[tuple[list[float], int]], repeats: int
) -> None:
    durations = Durations()
    seen: list[float] = []
    for samples, benefit in rounds:
        for sample in samples * (repeats + 1):
            durations.add(sample)
            seen.append(sample)
        chosen = durations.best_ttl_s(benefit)
        if not seen or benefit <= 0:
            assert chosen == 0.0
            continue
        # Times are whole 64ths and the benefit is whole, so that n * 64 * gain is a whole number.
        n = len(seen)
        gain = {
            t: round(sum(s <= t for s in seen) * benefit * 64 - t * 64 * n) for t in [0.0, *seen]
        }
        best = max(gain.values())
        assert chosen == min(t for t, g in gain.items() if g == best)


def test_more_samples_than_fit_into_a_block_are_handled() -> None:
    # 0.01, 0.02, ... : with B twice the longest, P(t) * B - t is monotonically increasing.
    durations = of(*(0.01 * i for i in range(1, 5 * MIN_BLOCK_LIMIT + 1)))
    assert durations.best_ttl_s(0.02 * 5 * MIN_BLOCK_LIMIT) == 0.01 * 5 * MIN_BLOCK_LIMIT
    assert len(durations) == 5 * MIN_BLOCK_LIMIT


def test_blocks_grow_with_the_samples_and_answers_stay_exact() -> None:
    """Times are whole 64ths and benefits whole, so that gains are compared as whole numbers."""
    rng, durations, seen = random.Random(7), Durations(), []
    for number in range(1, 8001):
        sample = round(rng.lognormvariate(0, 1.5) * 64) / 64
        durations.add(sample)
        seen.append(sample)
        if number % 500:
            continue
        benefit, ordered = rng.randrange(1, 40), sorted(seen)
        last = {t: i for i, t in enumerate(ordered, 1)}
        gain = {t: round(i * benefit * 64 - t * 64 * number) for t, i in last.items()} | {
            0.0: last.get(0.0, 0) * benefit * 64
        }
        best = max(gain.values())
        assert durations.best_ttl_s(benefit) == min(t for t, g in gain.items() if g == best)


def test_half_of_more_samples_than_the_limit_are_kept_with_the_same_distribution() -> None:
    durations = of(*range(MAX_SAMPLES + 1))
    assert len(durations) == MAX_SAMPLES // 2
    assert durations.share_within(MAX_SAMPLES // 4) == 0.25
    assert durations.best_ttl_s(2.0 * MAX_SAMPLES) == MAX_SAMPLES - 1
