"""Expected remaining time of a tool call, from the times of earlier calls.

In: seconds, one sample at a time. Out: the mean of x - t over the samples x above t, where t is the
time since the call. It is the area of the samples' survival curve beyond t over its height at t.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate

WINDOW = 1000
"""Number of latest samples that are kept."""


class RemainingTimes:
    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._sums: list[float] | None = None
        """Sums of the samples up to each one; None if a sample has been added since."""

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)
        insort(self._sorted, seconds)
        if len(self._latest) > WINDOW:
            oldest = self._latest.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._sums = None

    def after_s(self, elapsed_s: float) -> float | None:
        """Return the expected seconds until the end of a call that has lasted `elapsed_s`; None if
        no sample was longer."""
        if self._sums is None:
            self._sums = [0.0, *accumulate(self._sorted)]
        shorter = bisect_right(self._sorted, elapsed_s)
        longer = len(self._sorted) - shorter
        if not longer:
            return None
        return (self._sums[-1] - self._sums[shorter]) / longer - elapsed_s
