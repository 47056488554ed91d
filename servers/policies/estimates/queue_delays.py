"""T-bar, the mean queueing delay of turns that had been evicted (Continuum v3, §4.2).

In: turns as they are admitted. Out: seconds, 0 before the first turn. A turn counts if it is not
its program's first, its program's KV is not pinned, and it does not resume after a preemption. With
`of="all"`, turns whose KV is pinned count too.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from servers.policies.base import Request

WINDOW = 100
"""Number of turns in the sliding window. The paper gives none; this is its K."""


class QueueDelays:
    def __init__(self, window: int = WINDOW, of: Literal["evicted", "all"] = "evicted") -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self._pinned_too = of == "all"
        self._delays_s: deque[float] = deque(maxlen=window)
        self.mean_s = 0.0

    def scheduled(self, request: Request, now_s: float) -> None:
        evicted = self._pinned_too or not request.pinned
        if request.index > 0 and evicted and not request.preempted:
            self._delays_s.append(now_s - request.arrival_s)
            self.mean_s = sum(self._delays_s) / len(self._delays_s)
