"""Exact quotients of integers of any size."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.clock import quotient, seconds

INTEGERS = st.integers(-(2**70), 2**70)


@given(INTEGERS, st.integers(1, 2**70))
def test_a_quotient_is_the_float_closest_to_the_exact_one(dividend: int, divisor: int) -> None:
    assert quotient(dividend, divisor) == float(Fraction(dividend, divisor))


def test_times_beyond_the_integers_that_floats_express_are_rounded_once() -> None:
    ps = 521_113_785_104_912_495
    assert seconds(ps) == 521_113.785_104_912_5
    assert float(ps) / 1e12 == 521_113.785_104_912_53  # rounded twice


def test_a_division_by_zero_is_refused() -> None:
    with pytest.raises(ZeroDivisionError):
        quotient(1, 0)
