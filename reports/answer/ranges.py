"""Arithmetic and comparisons of numbers that are known only as a range.

An exact number is a range of one value. Overlapping ranges cannot be compared, nor can two infinite
numbers, such as the JCTs of two unstable cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from operator import truediv
from typing import NamedTuple


class Range(NamedTuple):
    low: float
    high: float


UNBOUNDED = Range(math.inf, math.inf)
"""Infinite."""
UNKNOWN = Range(-math.inf, math.inf)


def combined(operation: Callable[[float, float], float], one: Range, other: Range) -> Range:
    """Apply a sum, difference, product or quotient. Raises ZeroDivisionError if `other` is 0."""
    if operation is truediv and other.low <= 0 <= other.high and other.low < other.high:
        if one.low < 0 or other.low < 0:
            return UNKNOWN
        quotient = one.low / other.high
        return UNKNOWN if math.isnan(quotient) else Range(quotient, math.inf)
    ends = [operation(a, b) for a, b in product(one, other)]
    # Infinity minus infinity, and infinity times zero, are undefined.
    return UNKNOWN if any(map(math.isnan, ends)) else Range(min(ends), max(ends))


def compared(is_true: Callable[[float, float], bool], one: Range, other: Range) -> bool | None:
    """Return the result of `<`, `<=`, `>` or `>=` if it is the same for all values."""
    ends = list(product(one, other))
    if any((math.isinf(a) and a == b) or math.isnan(a) or math.isnan(b) for a, b in ends):
        return None
    results = {is_true(a, b) for a, b in ends}
    return results.pop() if len(results) == 1 else None
