"""How long KV is worth its room while a tool runs.

In: the times of tool calls, in seconds. Out: the time t that maximises

    P(S <= t) - a * E[min(S, t)]

where S is the time of the call and `a`, per second, is the cost of the room for one second as a
share of what a hit saves: a call that ends within t saves 1, and the KV is held for min(S, t).

Times are counted in buckets whose bounds grow by 2^(1/4), so that a decision takes the same time
after any number of calls. t is the largest time of a bucket.
"""

from __future__ import annotations

import math

BUCKETS_PER_OCTAVE = 4
SHORTEST_S = 1e-3
"""Shorter calls are counted in the first bucket."""
BUCKETS = 128
"""The last one begins at 0.001 s * 2^(127 / 4), which is 42 days."""


class GapWorth:
    def __init__(self) -> None:
        self.samples = 0
        self._counts = [0] * BUCKETS
        self._sums_s = [0.0] * BUCKETS
        self._longest_s = [0.0] * BUCKETS
        self._first = BUCKETS
        """The first bucket that holds a time."""
        self._end = 0
        """One past the last such bucket."""

    def add(self, seconds: float) -> None:
        bucket = 0
        if seconds > SHORTEST_S:
            octaves = math.log2(seconds / SHORTEST_S)
            bucket = min(int(octaves * BUCKETS_PER_OCTAVE), BUCKETS - 1)
        self.samples += 1
        self._counts[bucket] += 1
        self._sums_s[bucket] += seconds
        self._longest_s[bucket] = max(self._longest_s[bucket], seconds)
        self._first = min(self._first, bucket)
        self._end = max(self._end, bucket + 1)

    def best_ttl_s(self, cost_per_s: float) -> float:
        """Return the best t, or 0 if no t is worth the room. Of equally good ones, the shortest."""
        best_s = best = 0.0
        within, sum_s = 0, 0.0
        for bucket in range(self._first, self._end):
            count = self._counts[bucket]
            if not count:
                continue
            within += count
            sum_s += self._sums_s[bucket]
            t = self._longest_s[bucket]
            worth = within - cost_per_s * (sum_s + (self.samples - within) * t)
            if worth > best:
                best_s, best = t, worth
        return best_s
