"""The memoryfulness factor eta of Continuum v3, §4.1."""

from __future__ import annotations

import numpy as np
import pytest

from servers.policies.estimates.recent import Recent
from servers.policies.estimates.turn_counts import TurnCounts


def after(*lengths: int) -> TurnCounts:
    counts = TurnCounts()
    for program, turns in enumerate(lengths):
        for _ in range(turns):
            counts.served(str(program))
        counts.ended(str(program))
    return counts


def test_programs_of_one_length_are_fully_memoryful() -> None:
    # k and N - k sum to N, so their correlation is -1.
    assert after(5, 5, 5).eta == 1.0


def test_a_single_program_is_fully_memoryful() -> None:
    assert after(4).eta == 1.0


def test_without_programs_or_with_single_turns_eta_is_one() -> None:
    assert after().eta == 1.0
    assert after(1, 1).eta == 1.0


def test_eta_is_the_slope_at_which_turns_left_fall_with_turns_done() -> None:
    # N = 1 and 3: (k, N - k) = (0, 1); (0, 3), (1, 2), (2, 1). Means 3/4 and 7/4.
    # Sum of products of deviations 4 - 4 * 3/4 * 7/4 = -5/4; of squares 5 - 4 * 9/16 = 11/4.
    assert after(1, 3).eta == pytest.approx(5 / 11)


def test_a_heavy_tail_makes_eta_negative() -> None:
    # With 400 programs of 1 turn and one of 20, many turns so far mean many more to come.
    assert after(*[1] * 10, 20).eta > 0
    assert after(*[1] * 400, 20).eta < 0


def test_a_geometric_number_of_turns_has_no_memory() -> None:
    lengths = np.random.default_rng(0).geometric(0.2, size=20_000)
    assert after(*map(int, lengths)).eta == pytest.approx(0.0, abs=0.02)


def test_the_average_counts_only_finished_programs() -> None:
    counts = after(2, 6)
    counts.served("running")
    assert counts.average == 4.0
    assert after().average == 0.0


def test_a_program_that_ends_without_turns_does_not_count() -> None:
    counts = after(3)
    counts.ended("never seen")
    assert counts.average == 3.0


def test_recent_evicts_the_least_recently_used_entry() -> None:
    recent: Recent[int] = Recent(limit=2)
    recent["a"], recent["b"] = 1, 2
    recent["a"] = 3
    recent["c"] = 4
    assert "b" not in recent
    assert (recent.get("a"), recent.get("c"), len(recent)) == (3, 4, 2)


def test_recent_makes_a_missing_value_and_keeps_those_that_are_used() -> None:
    recent: Recent[list[int]] = Recent(limit=2)
    for number, key in enumerate("abaca"):
        recent.get_or_add(key, list).append(number)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == ([0, 2, 4], None, [3])
