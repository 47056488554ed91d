"""An empirical distribution of tool times, and the TTL that is best against it.

In: seconds, one sample at a time. Out: P(t), and the argmax of Continuum v3, §4.2, eq. 2. Exact
over all samples ever recorded.

With n samples sorted as x_1 <= ... <= x_n, eq. 2 asks for the i that maximises i * B/n - x_i:
the point at which a line of slope B/n touches the lower convex hull of (i, x_i). Samples are kept
in sorted blocks, each with its own hull; a block's hull does not change when samples before it
move its i, so that a new sample costs one block and a query one look at each block that can win.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

BLOCK = 96
"""Most samples in a block: balances rebuilding one hull against looking at many blocks."""


class Durations:
    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lasts: list[float] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, seconds: float) -> None:
        self._size += 1
        if not self._blocks:
            self._blocks.append(_Block([seconds]))
            self._lasts.append(seconds)
            return
        at = min(bisect_left(self._lasts, seconds), len(self._lasts) - 1)
        block = self._blocks[at]
        insort(block.values, seconds)
        block.stale = True
        if len(block.values) > BLOCK:
            half = BLOCK // 2
            self._blocks[at : at + 1] = [_Block(block.values[:half]), _Block(block.values[half:])]
            self._lasts.insert(at, block.values[half - 1])
            at += 1
        self._lasts[at] = self._blocks[at].values[-1]

    def share_within(self, seconds: float) -> float:
        """P(t): the share of samples of at most t seconds; 0 without samples."""
        if not self._size:
            return 0.0
        return sum(bisect_right(b.values, seconds) for b in self._blocks) / self._size

    def best_ttl_s(self, benefit_s: float) -> float:
        """argmax over t in {0} and the samples of P(t) * benefit_s - t; of equals the smallest."""
        if benefit_s <= 0 or not self._size:
            return 0.0
        best_t = best = 0.0
        if self._blocks[0].values[0] <= 0:
            best = self.share_within(0.0) * benefit_s
        slope = benefit_s / self._size
        before = 0
        for block in self._blocks:
            shortest = block.values[0]
            if shortest >= benefit_s:
                break
            through = before + len(block.values)
            if through * slope - shortest > best:
                within, t = block.touched_by(slope)
                gain = (before + within) / self._size * benefit_s - t
                if gain > best:
                    best_t, best = t, gain
            before = through
        return best_t


class _Block:
    """Sorted samples and the lower hull of their points (how many are at most x, x)."""

    __slots__ = ("counts", "slopes", "stale", "times", "values")

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.stale = True
        self.counts: list[int] = []
        self.times: list[float] = []
        self.slopes: list[float] = []

    def touched_by(self, slope: float) -> tuple[int, float]:
        """The first hull point from which no step right rises less steeply than `slope`."""
        if self.stale:
            self._wrap()
        at = bisect_left(self.slopes, slope)
        return self.counts[at], self.times[at]

    def _wrap(self) -> None:
        counts: list[int] = []
        times: list[float] = []
        slopes: list[float] = []
        values = self.values
        following = [*values[1:], None]
        for count, (t, then) in enumerate(zip(values, following, strict=True), 1):
            if t == then:
                continue
            while times:
                slope = (t - times[-1]) / (count - counts[-1])
                if not slopes or slope > slopes[-1]:
                    slopes.append(slope)
                    break
                counts.pop(), times.pop(), slopes.pop()
            counts.append(count)
            times.append(t)
        self.counts, self.times, self.slopes, self.stale = counts, times, slopes, False
