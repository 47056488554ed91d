"""FCFS whose KV of open sessions is evicted last: a pin that any turn without memory may take.

Source: vLLM RFC #52113, whose free blocks have three classes: those that a hint releases are
evicted first, then those without a hint, then those of a session that is expected back, until its
TTL is over. Here a turn that is not the last of its program leaves KV of the last class, and a last
turn leaves KV that is free. If a turn lacks blocks, the KV that has waited longest goes first.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Need, Policy, Request, Retention, pin


@mypyc_attr(allow_interpreted_subclasses=True)
class SoftTtl(Policy):
    """FCFS; the KV of open sessions is kept for a TTL, until another turn lacks blocks."""

    name = "soft-ttl"
    source = "vLLM RFC #52113"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "no: no code is public"
    reclaim_when: Literal["stuck", "pressure"] = "pressure"

    def __init__(self, costs: Costs, *, ttl_s: float = 60.0) -> None:
        super().__init__(costs)
        self._ttl_s = ttl_s

    def finished(self, request: Request, now_s: float) -> Retention:
        return FREE if request.ends_program else pin(self._ttl_s, tool=request.tool)
