"""Quantiles of Student's t, for which numpy has no function."""

from __future__ import annotations

import math
from functools import lru_cache

STEPS = 60
"""Of bisection: down to the last bits of an angle."""


@lru_cache(maxsize=256)
def quantile(probability: float, freedom: int) -> float:
    """Below which a t of `freedom` (1, 2, …) degrees lies with `probability` (½ to 1)."""
    low, high = 0.0, math.pi / 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _within(middle, freedom) < 2 * probability - 1 else (low, middle)
        )
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|t| ≤ √freedom · tan angle): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    cosine, odd = math.cos(angle), freedom % 2
    term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    share = math.sin(angle) * total
    return 2 / math.pi * (angle + share) if odd else share
