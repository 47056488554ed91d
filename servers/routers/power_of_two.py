"""Of two random replicas, the one with fewer turns serves the turn.

Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (IEEE TPDS 2001);
`--policy power_of_two` of vllm-router and of SGLang's gateway. The random numbers are the same in
each run (`seed`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from servers.basics.compiled_core import mypyc_attr
from servers.routers.base import Replica, RoutedTurn, Router, least_busy, usable


@mypyc_attr(allow_interpreted_subclasses=True)
class PowerOfTwo(Router):
    """Each turn goes to the less busy of two random replicas."""

    name = "power-of-two"
    source = "Mitzenmacher 2001; vllm-router, --policy power_of_two"

    def __init__(self, replicas: Sequence[Replica], *, seed: int = 0) -> None:
        super().__init__(replicas)
        self._random = random.Random(seed)  # noqa: S311

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        replicas = usable(self.replicas)
        if len(replicas) == 1:
            return replicas[0].index
        first, second = self._random.sample(range(len(replicas)), 2)
        return least_busy([replicas[first], replicas[second]])
