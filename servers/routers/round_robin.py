"""Turns go to the replicas in turn, whatever their load and contents.

The default of many load balancers, and of vllm-router (`--policy round_robin`).
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.basics.compiled_core import mypyc_attr
from servers.routers.base import Replica, RoutedTurn, Router, usable


@mypyc_attr(allow_interpreted_subclasses=True)
class RoundRobin(Router):
    """Each turn goes to the next replica."""

    name = "round-robin"
    source = "vllm-router, --policy round_robin"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self._next = 0

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        count, able = len(self.replicas), usable(self.replicas)
        while self.replicas[self._next] not in able:
            self._next = (self._next + 1) % count
        chosen = self._next
        self._next = (chosen + 1) % count
        return chosen
