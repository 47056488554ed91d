"""Expected remaining time of a tool call, from the times of earlier calls.

In: seconds, one sample at a time. Out: the mean of x - t over the samples x above t, where t is the
time since the call. It is the area of the samples' survival curve beyond t over its height at t.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import accumulate

WINDOW = 1000
"""Number of latest samples that are kept."""


class RemainingTimes:
    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._sums = [0.0]
        """Sums of the smallest samples, by their number."""
        self._summed = 0
        """Number of smallest samples up to which the sums are current."""

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)
        index = bisect_right(self._sorted, seconds)
        self._sorted.insert(index, seconds)
        if len(self._latest) > WINDOW:
            left = bisect_right(self._sorted, self._latest.popleft()) - 1
            del self._sorted[left]
            index = min(index, left)
        self._summed = min(self._summed, index)

    def after_s(self, elapsed_s: float) -> float | None:
        """Return the expected seconds until the end of a call that has lasted `elapsed_s`; None if
        no sample was longer."""
        if self._summed < len(self._sorted):
            start = self._summed
            self._sums[start:] = accumulate(self._sorted[start:], initial=self._sums[start])
            self._summed = len(self._sorted)
        shorter = bisect_right(self._sorted, elapsed_s)
        longer = len(self._sorted) - shorter
        if not longer:
            return None
        return (self._sums[-1] - self._sums[shorter]) / longer - elapsed_s
