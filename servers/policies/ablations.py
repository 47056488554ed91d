"""Policies with one choice made the other way, where a source leaves it open: `bench experiment`
plays them beside the originals (`harness/experiments/files/open-*.toml`,
docs/howto/experiments.md). By path:
`servers.policies.ablations:ContinuumPressure`.
"""

from __future__ import annotations

from servers.policies.base import Costs, Rank, Request
from servers.policies.continuum import Continuum
from servers.policies.infercept import Infercept


class ContinuumPressure(Continuum):
    """Pins give way at any failed admission (the text of v3, §5.2), not only in a deadlock."""

    name = "continuum-pressure"

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs, reclaim_when="pressure")


class ContinuumAllDelays(Continuum):
    """T-bar over every returning turn, not only over those that had been evicted (v3, §4.2)."""

    name = "continuum-all-delays"

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        if request.index > 0 and not request.preempted:
            self.model.delays.add(now_s - request.arrival_s)


class ContinuumEvictedTimes(Continuum):
    """The CDF of tool times over evicted turns only."""

    name = "continuum-evicted-times"

    def arrived(self, request: Request, now_s: float) -> None:
        if request.pinned:
            self.model.forget_gap(request.program_id)
        else:
            self.model.arrived(request, now_s)


class ContinuumEvictedTurns(Continuum):
    """eta over evicted turns only: k and N count the turns that came back to no KV, and first
    turns."""

    name = "continuum-evicted-turns"

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        super().scheduled(request, now_s, cached_tokens)
        if request.pinned:
            self.model.turns.uncount(request.program_id)


class InferceptPressure(Infercept):
    """Preserved contexts give way at any failed admission."""

    name = "infercept-pressure"

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs, reclaim_when="pressure")


class InferceptRequestOrder(Infercept):
    """Waiting turns in the order in which they came, as vLLM's queue has them; a preserved context
    does not move its turn forward."""

    name = "infercept-request-order"

    def rank(self, request: Request, now_s: float) -> Rank:
        return (not request.preempted, request.arrival_s, request.id)
