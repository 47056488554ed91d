"""Student's t distribution.

In: degrees of freedom, and a value or a probability. Out: a probability or a value, with a relative
error below 1e-12. The distribution function is an incomplete beta function, which is evaluated as
its continued fraction (DLMF 8.17.22).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

ROUNDING = 1e-15
"""Relative changes below this end an iteration."""


def probability_below(degrees: int, t: float) -> float:
    """Return the probability of a value of at most `t`."""
    return _tail(degrees, -t) if t < 0 else 1 - _tail(degrees, t)


@lru_cache(maxsize=1024)
def quantile(degrees: int, probability: float) -> float:
    """Return the value that is exceeded with a probability of 1 - `probability`.

    Newton's method converges from the normal quantile, which is nearer to 0, without passing the
    solution, since the tail is convex.
    """
    if probability < 0.5:
        return -quantile(degrees, 1 - probability)
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    scale = math.exp(log_scale) / math.sqrt(degrees * math.pi)
    t, step = NormalDist().inv_cdf(probability), math.inf
    while step > ROUNDING * t:  # never back, except by a rounding error
        density = scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
        step = (_tail(degrees, t) - (1 - probability)) / density
        t += step
    return t


def _tail(degrees: int, t: float) -> float:
    """Return the probability of a value above `t`, which is not negative."""
    square = t * t
    x, rest = degrees / (degrees + square), square / (degrees + square)
    a = degrees / 2
    log_beta = math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    factor = math.exp(a * math.log(x) - log_beta) * math.sqrt(rest)
    if x < (a + 1) / (a + 2.5):
        return factor * _fraction(a, 0.5, x) / a / 2
    return 0.5 - factor * _fraction(0.5, a, rest)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value, m, change = d, 0, 0.0
    while abs(change - 1) > ROUNDING:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            c, d = 1 + part / c, 1 / (1 + part * d)
            change = c * d
            value *= change
    return value
