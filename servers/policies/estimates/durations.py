"""An empirical distribution of tool times, and the TTL that is best against it.

In: seconds, one sample at a time. Out: P(t), and the argmax of Continuum v3, §4.2, eq. 2. Exact
over all samples ever recorded.

With n samples sorted as x_1 <= ... <= x_n, eq. 2 asks for the i that maximises i * B/n - x_i: the
point where a line of slope B/n touches the lower convex hull of (i, x_i). Samples are kept in
sorted blocks, each with the hull of its own points, which does not change when samples before the
block move its i. So a new sample mends one hull, and a query looks into the blocks that can win.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import isqrt

BLOCK = 128
"""Most samples in a block, of few samples; of many, four times the root of their number: balances
mending a hull against looking at many blocks."""


class Durations:
    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lasts: list[float] = []
        self._pending: list[float] = []
        """Recorded since the last query; a distribution that is not asked costs nothing."""
        self._size = 0
        self._ttl_s = 0.0
        """The last answer, where the next search begins."""

    def __len__(self) -> int:
        return self._size

    def add(self, seconds: float) -> None:
        self._size += 1
        self._pending.append(seconds)

    def share_within(self, seconds: float) -> float:
        """P(t): the share of samples of at most t seconds; 0 without samples."""
        self._sort_in()
        within = sum(bisect_right(block.values, seconds) for block in self._blocks)
        return within / self._size if self._size else 0.0

    def best_ttl_s(self, benefit_s: float) -> float:
        """argmax over t in {0} and the samples of P(t) * benefit_s - t; of equals the smallest."""
        self._sort_in()
        if benefit_s <= 0 or not self._size:
            return 0.0
        blocks, size = self._blocks, self._size
        slope = benefit_s / size
        through = list(accumulate([len(block.values) for block in blocks]))
        best_t = 0.0
        best = self.share_within(0.0) * benefit_s if blocks[0].values[0] <= 0 else 0.0
        likely = min(bisect_left(self._lasts, self._ttl_s), len(blocks) - 1)
        for at in (likely, *range(len(blocks))):
            values = blocks[at].values
            if through[at] / size * benefit_s - values[0] >= best:
                within, t = blocks[at].touched_by(slope)
                gain = (through[at] - len(values) + within) / size * benefit_s - t
                if gain > best or (gain == best and t < best_t):
                    best_t, best = t, gain
        self._ttl_s = best_t
        return best_t

    @property
    def _most(self) -> int:
        return max(BLOCK, 4 * isqrt(self._size))

    def _sort_in(self) -> None:
        pending, self._pending = self._pending, []
        if 8 * len(pending) > self._size:
            values = sorted([v for block in self._blocks for v in block.values] + pending)
            half = self._most // 2
            self._blocks = [_Block(values[i : i + half]) for i in range(0, len(values), half)]
            self._lasts = [block.values[-1] for block in self._blocks]
            return
        for seconds in pending:
            self._insert(seconds)

    def _insert(self, seconds: float) -> None:
        at = min(bisect_left(self._lasts, seconds), len(self._lasts) - 1)
        values = self._blocks[at].insert(seconds)
        self._lasts[at] = values[-1]
        if len(values) > self._most:
            half = len(values) // 2
            self._blocks[at : at + 1] = [_Block(values[:half]), _Block(values[half:])]
            self._lasts.insert(at, values[half - 1])


class _Block:
    """Sorted samples, and the lower hull of their points (how many are at most t, t)."""

    __slots__ = ("counts", "slopes", "times", "values")

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.counts: list[int] = []
        self.times: list[float] = []
        self.slopes: list[float] = []
        """From each hull point to the next, strictly rising."""
        self._extend((i, t) for i, t in enumerate(values, 1) if i == len(values) or values[i] > t)

    def touched_by(self, slope: float) -> tuple[int, float]:
        """The first hull point that a line of this slope touches from below."""
        at = bisect_left(self.slopes, slope)
        return self.counts[at], self.times[at]

    def insert(self, t: float) -> list[float]:
        """All points from t on move one to the right, which flattens only the hull's edge across
        t. Points left of t stay above it; points between t and that edge's end may come to light;
        beyond that end the hull stays as it is, unless t is the new smallest.
        """
        values = self.values
        place = bisect_right(values, t)
        values.insert(place, t)
        cut = bisect_left(self.times, t)
        counts, times, slopes = self.counts[cut:], self.times[cut:], self.slopes[cut:]
        del self.counts[cut:], self.times[cut:], self.slopes[max(cut - 1, 0) :]
        if not times:
            self._extend([(place + 1, t)])
            return values
        if times[0] != t:
            self._extend(self._between(place, bisect_left(values, times[0]), counts[0] + 1))
        counts = [count + 1 for count in counts]
        if cut:
            self._extend([(counts[0], times[0])])
            self.counts += counts[1:]
            self.times += times[1:]
            self.slopes += slopes
        else:
            self._extend(zip(counts, times, strict=True))
        return values

    def _between(self, start: int, stop: int, count: int) -> list[tuple[int, float]]:
        """The point of sample `start`, and those before sample `stop`, whose point is at `count`,
        that lie below the line between the two."""
        values = self.values
        t = values[start]
        rise = (values[stop] - t) / (count - start - 1)
        below = [
            (i + 1, values[i])
            for i in range(start + 1, stop)
            if values[i] - t < rise * (i - start) and values[i] < values[i + 1]
        ]
        return [(start + 1, t), *below]

    def _extend(self, points: Iterable[tuple[int, float]]) -> None:
        """Push points that lie right of the hull, dropping those that come to lie above it."""
        counts, times, slopes = self.counts, self.times, self.slopes
        for count, t in points:
            while times:
                slope = (t - times[-1]) / (count - counts[-1])
                if not slopes or slope > slopes[-1]:
                    slopes.append(slope)
                    break
                counts.pop(), times.pop(), slopes.pop()
            counts.append(count)
            times.append(t)
