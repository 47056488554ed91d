"""Durations of consecutive decode steps, each of which takes longer than the one before."""

from __future__ import annotations

import pytest

from servers.sim.strides import duration_ps, steps_until


def test_each_step_takes_one_increment_longer_than_the_step_before() -> None:
    assert duration_ps(4, 100, 3) == 100 + 103 + 106 + 109
    assert duration_ps(1, 100, 3) == 100
    assert duration_ps(0, 100, 3) == 0


@pytest.mark.parametrize(
    ("left_ps", "steps"),
    # The steps end at 100, 203, 309, 418 and 530.
    [(1, 1), (100, 1), (101, 2), (203, 2), (417, 4), (418, 4), (419, 5), (530, 5)],
)
def test_a_stride_ends_with_the_first_step_that_reaches_the_event(left_ps: int, steps: int) -> None:
    assert steps_until(left_ps, 100, 100, 3) == steps


@pytest.mark.parametrize(("left_ps", "steps"), [(203, 2), (204, 3), (309, 3), (310, 3), (999, 3)])
def test_a_stride_has_at_most_the_given_number_of_steps(left_ps: int, steps: int) -> None:
    assert steps_until(left_ps, 3, 100, 3) == steps


@pytest.mark.parametrize("left_ps", [0, -1, -(10**15)])
def test_an_event_that_is_due_ends_the_stride_after_one_step(left_ps: int) -> None:
    assert steps_until(left_ps, 100, 100, 3) == 1


def test_steps_of_equal_length_are_counted_too() -> None:
    assert [steps_until(left_ps, 9, 100, 0) for left_ps in (99, 100, 101, 250)] == [1, 1, 2, 3]


@pytest.mark.parametrize("steps", [2, 3, 1000, 999_999, 30_000_001])
def test_the_count_is_exact_where_floating_point_numbers_are_not(steps: int) -> None:
    # Hours in picoseconds have more than the 53 bits of a float.
    first_ps, increment_ps = 10**10 + 1, 7
    end_ps = duration_ps(steps, first_ps, increment_ps)
    found = [steps_until(end_ps + more, 10**9, first_ps, increment_ps) for more in (-1, 0, 1)]
    assert found == [steps, steps, steps + 1]
