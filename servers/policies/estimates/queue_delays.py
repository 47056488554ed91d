"""T-bar, the mean queueing delay of turns that had been evicted (Continuum v3, §4.2).

In: turns as they are admitted. Out: seconds, 0 before the first. A turn counts when it is not its
program's first, its program's KV is not pinned, and it is not resuming after a preemption.
"""

from __future__ import annotations

from collections import deque

from servers.policies.base import Request

WINDOW = 100
"""Turns in the sliding window. The paper does not say; this is its K."""


class QueueDelays:
    def __init__(self, window: int = WINDOW) -> None:
        self._delays_s: deque[float] = deque(maxlen=window)
        self.mean_s = 0.0

    def scheduled(self, request: Request, now_s: float) -> None:
        if request.index > 0 and not request.pinned and not request.preempted:
            self.add(now_s - request.arrival_s)

    def add(self, delay_s: float) -> None:
        self._delays_s.append(delay_s)
        self.mean_s = sum(self._delays_s) / len(self._delays_s)
