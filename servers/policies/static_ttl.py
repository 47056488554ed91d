"""Program-level FCFS plus a TTL that is the same for every tool: T_default (v3, §6.4, Fig. 16).

T_default is the cold-start TTL of the cost model, ln(T-bar + rebuild(r)) where that exceeds 0
(§4.2, `ttl_model.default_ttl_s`). "Fixed" is read as the same rule for every tool call, with the
T-bar and the context of that moment, as in Continuum's own cold start.

The paper does not say whether pinned programs go first. The ablation "builds upon program-level
FCFS", so they do not. Pins are released in the order of `continuum`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Need, Pin, Request, Retention, pin
from servers.policies.estimates.queue_delays import WINDOW, QueueDelays
from servers.policies.estimates.ttl_model import default_ttl_s
from servers.policies.program_fcfs import ProgramFcfs
from servers.policies.program_order import latest_programs_first


@mypyc_attr(allow_interpreted_subclasses=True)
class StaticTtl(ProgramFcfs):
    """As program-fcfs, and KV is kept for the same default TTL after every tool."""

    name = "static-ttl"
    source = "Continuum v3, §6.4 and §4.2"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "no: its authors published no code of it"

    def __init__(self, costs: Costs, *, window: int = WINDOW) -> None:
        super().__init__(costs)
        self._delays = QueueDelays(window)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._delays.scheduled(request, now_s)

    def finished(self, request: Request, now_s: float) -> Retention:
        if request.ends_program:
            return FREE
        t_bar_s = self._delays.mean_s
        rebuild_s = self.costs.rebuild_s(request.prompt_tokens + request.output_tokens)
        ttl_s = default_ttl_s(t_bar_s + rebuild_s)
        return pin(ttl_s, tool=request.tool, T_bar_s=t_bar_s, rebuild_s=rebuild_s)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return latest_programs_first(pins)
