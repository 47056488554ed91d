"""Times between the turns of a program, fitted by a log-normal distribution (Progress-TTL).

In: seconds, one sample at a time. Out: the time for which keeping a context pays best, or within
which a share of the times ends.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist
from typing import Final

from servers.basics.clock import quotient

SHORTEST_S = 0.05
"""The shortest time above 0 that is tried."""
POINTS = 32
"""Number of times that are tried, at equal ratios."""
EXPONENTS = tuple([quotient(point, POINTS - 1) for point in range(POINTS)])
SQRT_2: Final = math.sqrt(2)


class LogNormalTimes:
    def __init__(self, window: int) -> None:
        self._window = window
        """Number of recent samples that a fit needs and uses."""
        self._logs: deque[float] = deque(maxlen=window)
        self._zeros: deque[bool] = deque(maxlen=window)
        """Whether each of the recent samples was zero, which has no logarithm."""

    def add(self, seconds: float) -> None:
        if len(self._zeros) == self._window and not self._zeros[0]:
            self._logs.popleft()
        self._zeros.append(seconds <= 0)
        if seconds > 0:
            self._logs.append(math.log(seconds))

    def best_ttl_s(self, rebuild_s: float, longest_s: float) -> float:
        """Return the d of at most `longest_s` and `rebuild_s` that maximises

            U(d) = rebuild_s * F(d) - E[T; T < d] - d * (1 - F(d)),

        or 0 before the window is full. If two are equally good, the longer one."""
        longest_s = min(longest_s, rebuild_s)
        if len(self._zeros) < self._window or not self._logs or longest_s <= 0:
            return 0.0
        fit = LogNormal(*self._fitted())
        shortest_s = min(SHORTEST_S, longest_s)
        ratio = longest_s / shortest_s
        best_s, best = 0.0, 0.0
        for exponent in EXPONENTS:
            ttl_s = shortest_s * ratio**exponent
            gain = fit.utility(ttl_s, rebuild_s)
            if gain >= best:
                best_s, best = ttl_s, gain
        return min(best_s, longest_s)

    def quantile_s(self, share: float) -> float:
        """Return the time within which `share` of the times above 0 ends, or 0 before the window is
        full."""
        if len(self._zeros) < self._window or not self._logs:
            return 0.0
        mean, sigma = self._fitted()
        return math.exp(mean + sigma * NormalDist().inv_cdf(share))

    def _fitted(self) -> tuple[float, float]:
        """Return the mean and the deviation of the logarithms."""
        mean = sum(self._logs) / len(self._logs)
        variance = sum([(log - mean) ** 2 for log in self._logs]) / len(self._logs)
        return mean, max(math.sqrt(variance), 1e-6)


class LogNormal:
    """Times whose logarithms have this mean and deviation."""

    def __init__(self, mean: float, sigma: float) -> None:
        self._mean = mean
        self._sigma = sigma
        self._mean_s = math.exp(mean + sigma * sigma / 2)

    def utility(self, ttl_s: float, rebuild_s: float) -> float:
        """Return U(ttl_s) in seconds."""
        z = (math.log(ttl_s) - self._mean) / self._sigma
        within = _normal(z)
        time_within_s = self._mean_s * _normal(z - self._sigma)
        return rebuild_s * within - time_within_s - ttl_s * (1 - within)


def _normal(z: float) -> float:
    """Return the share of a standard normal distribution below z."""
    return 0.5 * (1 + math.erf(z / SQRT_2))
