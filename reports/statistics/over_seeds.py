"""Calculates means and ratios over seeds, with Student's interval of their logarithms.

In: one value per seed. Out: estimates. A seed draws the arrivals and the programs, so values of
different seeds are independent and the interval covers both. The two sides of a ratio are paired by
seed: they have the same jobs at the same times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reports.statistics import student
from reports.statistics.bootstrap import CONFIDENCE, Estimate

ROUNDING = 1e-9
"""Smaller differences are rounding errors."""


class Prior(NamedTuple):
    """Prior knowledge of the variation between seeds."""

    deviation: float
    """Standard deviation of the logarithms."""
    weight: int
    """Degrees of freedom with which the prior counts, in addition to the seeds'."""


UNKNOWN = Prior(0.0, 0)


def geometric_mean(
    values: Iterable[float], confidence: float = CONFIDENCE, prior: Prior = UNKNOWN
) -> Estimate:
    """Return the geometric mean of positive values, one per seed. One seed has no interval: its
    limits are NaN."""
    logs = np.log(np.fromiter(values, dtype=float))
    value = float(np.exp(logs.mean()))
    half = _half_width(logs, confidence, prior)
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def reached_by_most(values: Collection[float]) -> float:
    """Return what a new value exceeds with a probability of 95%, judging from these positive
    values, one per seed: a one-sided prediction bound. NaN for one value.

    With so few values that the lowest ones are no such bound, their logarithms are taken as normal
    (Hahn and Meeker, Statistical Intervals, chapters 4 and 5).
    """
    count = len(values)
    if (rank := math.floor((1 - CONFIDENCE) * (count + 1) + ROUNDING)) >= 1:
        return sorted(values)[rank - 1]
    if count < 2:
        return math.nan
    logs = np.log(np.fromiter(values, dtype=float))
    t = student.quantile(count - 1, CONFIDENCE)
    return math.exp(float(logs.mean() - t * logs.std(ddof=1) * math.sqrt(1 + 1 / count)))


def mean_of_positive(values: Iterable[float]) -> Estimate:
    """Return the arithmetic mean of positive values, one per seed. The interval is calculated for
    its logarithm, from the relative error of the mean, so that no limit is negative. One seed has
    no interval."""
    numbers = np.fromiter(values, dtype=float)
    value = float(numbers.mean())
    half = _half_width(numbers / value, CONFIDENCE, UNKNOWN)
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def arithmetic_mean(values: Iterable[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of values, one per seed, which may be zero or negative. One seed has no
    interval: its limits are NaN."""
    numbers = np.fromiter(values, dtype=float)
    value = float(numbers.mean())
    half = _half_width(numbers, confidence, UNKNOWN)
    return Estimate(value, value - half, value + half)


def _half_width(numbers: npt.NDArray[np.float64], confidence: float, prior: Prior) -> float:
    if len(numbers) < 2:
        return math.nan
    degrees = len(numbers) - 1 + prior.weight
    squares = float(numbers.var(ddof=0)) * len(numbers) + prior.weight * prior.deviation**2
    t = student.quantile(degrees, (1 + confidence) / 2)
    return t * math.sqrt(squares / degrees / len(numbers))


def low_tail(values: Iterable[float], truth: float) -> float:
    """Return the probability of a mean over seeds this low or lower if the true value is `truth`;
    NaN for one seed. Positive values are compared by their logarithms."""
    numbers = np.fromiter(values, dtype=float)
    if len(numbers) < 2:
        return math.nan
    if (numbers > 0).all():
        if truth <= 0:
            return 1.0
        numbers, truth = np.log(numbers), math.log(truth)
    excess = float(numbers.mean()) - truth
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    if abs(excess) <= ROUNDING:
        return 0.5
    if error <= ROUNDING:
        return 0.0 if excess < 0 else 1.0
    return student.probability_below(len(numbers) - 1, excess / error)


def paired_ratio(
    above: Mapping[int, float],
    below: Mapping[int, float],
    confidence: float = CONFIDENCE,
    prior: Prior = UNKNOWN,
) -> Estimate | None:
    """Return the ratio of two sides with values by seed, over their common seeds; None without
    any."""
    seeds = sorted(above.keys() & below.keys())
    if not seeds:
        return None
    return geometric_mean((above[seed] / below[seed] for seed in seeds), confidence, prior)
