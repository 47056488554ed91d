"""Mean and variance of tool times, one sample at a time (Welford). Seconds."""

from __future__ import annotations


class Moments:
    __slots__ = ("_squares", "mean", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        self.samples += 1
        deviation = value - self.mean
        self.mean += deviation / self.samples
        self._squares += deviation * (value - self.mean)

    @property
    def variance(self) -> float:
        """Sample variance (n - 1); 0 with fewer than two samples (Continuum v1, §4.2)."""
        return self._squares / (self.samples - 1) if self.samples > 1 else 0.0
