"""Least squares without negative factors: a case by hand, and SciPy's solutions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from servers.basics.least_squares import nonnegative_factors


def test_a_factor_that_would_be_negative_is_zero_and_the_others_are_fitted_again() -> None:
    # Without the limit the factors are (3, -1). With the second at 0, the first has the least
    # squares of (2 - x)² + (3 - x)²: 2.5.
    columns = np.array([[1.0, 1.0], [1.0, 0.0]])
    assert nonnegative_factors(columns, np.array([2.0, 3.0])) == pytest.approx([2.5, 0])


def test_values_that_every_column_moves_away_from_give_zeros() -> None:
    assert nonnegative_factors(np.eye(3), np.array([-1.0, -2.0, 0.0])).tolist() == [0, 0, 0]


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 15), st.booleans())
def test_factors_are_as_near_as_those_of_scipy(
    seed: int, rows: int, count: int, are_dependent: bool
) -> None:
    random = np.random.default_rng(seed)
    columns, values = random.normal(size=(rows, count)), random.normal(size=rows)
    if are_dependent:
        columns[:, 0], columns[:, -1] = 0, 2 * columns[:, count // 2]
    found = nonnegative_factors(columns, values)
    expected, distance = nnls(columns, values)
    assert (found >= 0).all()
    assert np.linalg.norm(columns @ found - values) == pytest.approx(distance, abs=1e-10)
    if rows >= count and not are_dependent:
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)
