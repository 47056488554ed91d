"""The unit of the engines' clocks, and exact quotients. Policies and records see seconds."""

from __future__ import annotations

from operator import truediv
from typing import Final

PS_PER_S: Final = 1_000_000_000_000
"""Both engines count whole picoseconds, so that sums of step times are exact."""
LARGEST_FLOAT_INT: Final = 9_007_199_254_740_992
"""2**53: all integers up to this one are floats too."""


def seconds(ps: int) -> float:
    """Return the float that is closest to a time in picoseconds."""
    return quotient(ps, PS_PER_S)


def quotient(dividend: int, divisor: int) -> float:
    """Return the float that is closest to the quotient of two integers, as Python's `/` does. The
    `/` of compiled code rounds larger integers to floats first, so compiled modules call this."""
    if -LARGEST_FLOAT_INT <= dividend <= LARGEST_FLOAT_INT and divisor <= LARGEST_FLOAT_INT:
        return float(dividend) / float(divisor)
    return float(truediv(dividend, divisor))
