"""Defines distributions by their quantile functions, and draws stratified samples from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

inverse_normal = np.vectorize(NormalDist().inv_cdf, otypes=[float])
_erfc = np.vectorize(math.erfc, otypes=[float])


def normal(z: Floats) -> Floats:
    """Return the probabilities that a normal variable is at most z."""
    result: Floats = 0.5 * _erfc(z * -math.sqrt(0.5))
    return result


class Distribution(Protocol):
    def quantile(self, u: Floats) -> Floats: ...


def stratified(size: int, rng: np.random.Generator) -> Floats:
    """Return one uniform draw from each of `size` equal slices of (0, 1), in random order."""
    slices = (np.arange(size) + 0.5 + (rng.random(size) - 0.5) * 0.999) / size
    return slices[np.argsort(rng.random(size), kind="stable")]


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution, clipped at `low` and `high`."""

    mean: float
    sd: float
    low: float = -math.inf
    high: float = math.inf

    def quantile(self, u: Floats) -> Floats:
        unclipped: Floats = self.mean + self.sd * inverse_normal(u)
        return np.clip(unclipped, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """ln x has mean ln(median) and standard deviation `sigma`."""

    median: float
    sigma: float

    def quantile(self, u: Floats) -> Floats:
        result: Floats = self.median * np.exp(self.sigma * inverse_normal(u))
        return result


@dataclass(frozen=True, slots=True)
class Weibull:
    """P(x > t) = exp(−(t/λ)^shape), with λ = mean / Γ(1 + 1/shape). Shape 1 is the exponential."""

    mean: float
    shape: float

    def quantile(self, u: Floats) -> Floats:
        scale = self.mean / math.gamma(1 + 1 / self.shape)
        result: Floats = scale * (-np.log1p(-u)) ** (1 / self.shape)
        return result

    @property
    def second_over_mean_squared(self) -> float:
        """E[x²] / E[x]²."""
        return math.gamma(1 + 2 / self.shape) / math.gamma(1 + 1 / self.shape) ** 2


@dataclass(frozen=True, slots=True)
class Uniform:
    low: float
    high: float

    def quantile(self, u: Floats) -> Floats:
        return self.low + (self.high - self.low) * u
