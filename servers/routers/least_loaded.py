"""Turns go to the replica with the least load.

`load="turns"` counts the turns that the router itself has sent and that have not ended, which is
always up to date. `load="kv"` takes the KV in use by the replicas' load reports, as routers do that
read `vllm:kv_cache_usage_perc` every second or so (`report_s`): between two reports all turns go to
the same replica unless the turns sent since then count, so ties and stale reports are resolved by
the number of turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from servers.basics.compiled_core import mypyc_attr
from servers.routers.base import Replica, RoutedTurn, Router, least_busy, usable

REPORT_S = 1.0


@mypyc_attr(allow_interpreted_subclasses=True)
class LeastLoaded(Router):
    """Each turn goes to the replica with the fewest turns, or with the least KV in use."""

    name = "least-loaded"

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        load: Literal["turns", "kv"] = "turns",
        report_s: float = REPORT_S,
    ) -> None:
        super().__init__(replicas)
        if report_s < 0:
            raise ValueError(f"report_s must be at least 0, not {report_s}")
        self._by_kv = load == "kv"
        self.report_s = report_s if self._by_kv else None

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        if not self._by_kv:
            return least_busy(usable(self.replicas))
        return least_used(usable(self.replicas))


def least_used(replicas: Sequence[Replica]) -> int:
    """Return the replica with the least KV in use; of several, the one with the fewest turns."""
    best = replicas[0]
    for replica in replicas:
        used, least = replica.used_tokens, best.used_tokens
        if used < least or (used == least and replica.turns < best.turns):
            best = replica
    return best.index
