"""A program keeps its KV between its turns; others wait until theirs fits, or lose it as a whole.

Source: sglang #27574, comment of 15 June 2026. Under KV pressure a request is held back although it
could evict KV of programs that go on, as in CONCUR, and if one has to lose KV, it loses all of it,
instead of many losing the ends of theirs.

Here the KV of a turn that is not the last of its program is pinned without a limit of time. A turn
without a pin runs if its prompt fits beside the KV in use and the pins, and leaves the share
`reserve` of the device free for contexts that grow; otherwise no later turn of its kind runs
either, so that none waits forever. The source states neither its threshold nor which program loses
its KV: 10% and the program that arrived last are ours, and it does so if no turn runs that could
free blocks by finishing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import (
    FREE,
    Admit,
    Costs,
    Need,
    Pin,
    Policy,
    Rank,
    Request,
    Retention,
    pin,
)
from servers.policies.program_order import latest_programs_first, of_latest_program


@mypyc_attr(allow_interpreted_subclasses=True)
class Trajectory(Policy):
    """Open programs keep their KV; others are held back, or lose it one whole program at a time."""

    name = "trajectory"
    source = "sglang #27574"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "no: no code is public"

    def __init__(self, costs: Costs, *, reserve: float = 0.1) -> None:
        super().__init__(costs)
        if not 0 <= reserve < 1:
            raise ValueError(f"reserve is a share of the KV, from 0 to below 1, not {reserve:g}")
        known = costs.kv_tokens < math.inf
        self._reserved_tokens = reserve * costs.kv_tokens if known else 0.0

    def finished(self, request: Request, now_s: float) -> Retention:
        return FREE if request.ends_program else pin(math.inf, tool=request.tool)

    def rank(self, request: Request, now_s: float) -> Rank:
        return (not request.pinned, request.program_arrival_s, request.id)

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        fits = request.prompt_tokens + self._reserved_tokens <= free_tokens
        return "run" if request.pinned or fits else "stop"

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        return of_latest_program(running)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return latest_programs_first(pins)
