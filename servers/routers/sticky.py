"""All turns of a program go to the replica that served its first one (session affinity).

A new program goes to the replica with the fewest programs; of those with equally many, to the one
with the fewest turns. So its KV is always where its next turn goes, and the load follows the
programs, however long they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.compiled_core import mypyc_attr
from servers.routers.base import Replica, RoutedTurn, Router


@mypyc_attr(allow_interpreted_subclasses=True)
class Sticky(Router):
    """A program stays on the replica that had the fewest programs when it arrived."""

    name = "sticky"
    source = "session affinity, as in vLLM's production stack (--routing-logic session)"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self._programs = [0] * len(replicas)
        self._home: dict[str, int] = {}

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        home = self._home.get(turn.program_id)
        if home is None:
            home = min(
                range(len(self.replicas)),
                key=lambda index: (self._programs[index], self.replicas[index].turns, index),
            )
            self._home[turn.program_id] = home
            self._programs[home] += 1
        return home

    def program_ended(self, program_id: str, now_s: float) -> None:
        home = self._home.pop(program_id, None)
        if home is not None:
            self._programs[home] -= 1
