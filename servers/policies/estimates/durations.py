"""An empirical distribution of tool times, and the best TTL for it.

In: seconds, one sample at a time. Out: P(t), and the argmax of Continuum v3, §4.2, eq. 2, exact
over all samples.

With n samples sorted as x_1 <= ... <= x_n, eq. 2 asks for the i that maximises i * B/n - x_i: the
point where a line of slope B/n touches the lower convex hull of (i, x_i). Samples are kept in
sorted blocks, each with the hull of its points, which does not change when samples before the block
shift its i. A new sample updates one hull; a query searches only blocks with a possible maximum.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import isqrt

from servers.basics.clock import quotient

MIN_BLOCK_LIMIT = 128
"""Maximum number of samples in a block. With more than 1024 samples the maximum is four times the
square root of their number, which balances updates of a hull against the search over blocks."""


MAX_SAMPLES = 100_000
"""With more samples, every second one of all in order is dropped. The distribution stays the same,
and earlier samples then count half as much as later ones."""


class Durations:
    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lasts: list[float] = []
        """The largest sample of each block."""
        self._pending: list[float] = []
        """Samples since the last query; a distribution without queries is never sorted."""
        self._size = 0
        self._ttl_s = 0.0
        """The previous result, at which the next search begins."""

    def __len__(self) -> int:
        return self._size

    def add(self, seconds: float) -> None:
        self._size += 1
        self._pending.append(seconds)
        if self._size > MAX_SAMPLES:
            kept = self._all()[1::2]
            self._size, self._pending = len(kept), []
            self._set(kept)

    def share_within(self, seconds: float) -> float:
        """Return P(t), the share of samples of at most t seconds; 0 without samples."""
        self._sort_in()
        whole = bisect_right(self._lasts, seconds)
        within = sum([len(block.values) for block in self._blocks[:whole]])
        if whole < len(self._blocks):
            within += bisect_right(self._blocks[whole].values, seconds)
        return quotient(within, self._size) if self._size else 0.0

    def best_ttl_s(self, benefit_s: float) -> float:
        """Return the smallest argmax of P(t) * benefit_s - t over 0 and the samples."""
        self._sort_in()
        if benefit_s <= 0 or not self._size:
            return 0.0
        blocks, size = self._blocks, self._size
        slope = benefit_s / size
        through = list(accumulate([len(block.values) for block in blocks]))
        best_t = 0.0
        best = self.share_within(0.0) * benefit_s if blocks[0].values[0] <= 0 else 0.0
        previous = min(bisect_left(self._lasts, self._ttl_s), len(blocks) - 1)
        order: list[int] = [previous, *range(len(blocks))]
        for index in order:
            values = blocks[index].values
            if index > previous and benefit_s - values[0] < best:
                break
            if quotient(through[index], size) * benefit_s - values[0] >= best:
                within, t = blocks[index].touched_by(slope)
                gain = quotient(through[index] - len(values) + within, size) * benefit_s - t
                if gain > best or (gain == best and t < best_t):
                    best_t, best = t, gain
        self._ttl_s = best_t
        return best_t

    @property
    def _block_limit(self) -> int:
        return max(MIN_BLOCK_LIMIT, 4 * isqrt(self._size))

    def _sort_in(self) -> None:
        if 8 * len(self._pending) > self._size:
            values, self._pending = self._all(), []
            self._set(values)
            return
        pending, self._pending = self._pending, []
        for seconds in pending:
            self._insert(seconds)

    def _all(self) -> list[float]:
        """Return all samples in order."""
        return sorted([v for block in self._blocks for v in block.values] + self._pending)

    def _set(self, values: list[float]) -> None:
        half = self._block_limit // 2
        self._blocks = [_Block(values[i : i + half]) for i in range(0, len(values), half)]
        self._lasts = [block.values[-1] for block in self._blocks]

    def _insert(self, seconds: float) -> None:
        index = min(bisect_left(self._lasts, seconds), len(self._lasts) - 1)
        values = self._blocks[index].insert(seconds)
        self._lasts[index] = values[-1]
        if len(values) > self._block_limit:
            half = len(values) // 2
            self._blocks[index : index + 1] = [_Block(values[:half]), _Block(values[half:])]
            self._lasts.insert(index, values[half - 1])


class _Block:
    """Sorted samples, and the lower hull of their points (number of samples up to t, t)."""

    __slots__ = ("counts", "slopes", "times", "values")

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.counts: list[int] = []
        self.times: list[float] = []
        self.slopes: list[float] = []
        """Slope from each hull point to the next, strictly increasing."""
        last = len(values)
        for count, t in enumerate(values, 1):
            if count == last or values[count] > t:
                self._append(count, t)

    def touched_by(self, slope: float) -> tuple[int, float]:
        """Return the first hull point that a line of this slope touches from below."""
        index = bisect_left(self.slopes, slope)
        return self.counts[index], self.times[index]

    def insert(self, t: float) -> list[float]:
        """Add a sample and return the values. All points from t on move one to the right, which
        flattens only the hull's edge across t. Points left of t stay above the hull; points between
        t and that edge's end may join it; beyond that end the hull changes only if t is the new
        smallest value."""
        values = self.values
        index = bisect_right(values, t)
        values.insert(index, t)
        cut = bisect_left(self.times, t)
        counts, times, slopes = self.counts[cut:], self.times[cut:], self.slopes[cut:]
        del self.counts[cut:], self.times[cut:], self.slopes[max(cut - 1, 0) :]
        if not times:
            self._append(index + 1, t)
            return values
        if times[0] != t:
            self._append_between(index, bisect_left(values, times[0]), counts[0] + 1)
        counts = [count + 1 for count in counts]
        self._append(counts[0], times[0])
        if cut:
            self.counts += counts[1:]
            self.times += times[1:]
            self.slopes += slopes
        else:
            for i in range(1, len(counts)):
                self._append(counts[i], times[i])
        return values

    def _append_between(self, start: int, stop: int, count: int) -> None:
        """Append the point of sample `start`, and those points before sample `stop` (whose point is
        at `count`) that are below the line between the two."""
        values = self.values
        t = values[start]
        rise = (values[stop] - t) / (count - start - 1)
        self._append(start + 1, t)
        for i in range(start + 1, stop):
            if values[i] - t < rise * (i - start) and values[i] < values[i + 1]:
                self._append(i + 1, values[i])

    def _append(self, count: int, t: float) -> None:
        """Append a point at the right end of the hull, and drop points that are then above it."""
        counts, times, slopes = self.counts, self.times, self.slopes
        while times:
            slope = (t - times[-1]) / (count - counts[-1])
            if not slopes or slope > slopes[-1]:
                slopes.append(slope)
                break
            counts.pop(), times.pop(), slopes.pop()
        counts.append(count)
        times.append(t)
