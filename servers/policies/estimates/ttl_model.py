"""Continuum's cost model, which sets the TTL of a finished turn's KV (Continuum v3, §4.1 and §4.2).

In: an engine's events, in seconds and tokens. Out: a `Retention` whose `why` has the inputs.

    tau* = argmax over tau in {0} and S[f] of P(tau, f) * B - tau,   B = T-bar * eta + rebuild(r)

Cold start: if all tools together have |S| <= K samples, the TTL is T_default; if this tool has
|S[f]| <= K samples, P is over all tools; else P is of this tool. For turns that are not the last
and whose tool could not be read, which the paper does not treat, P is over all tools.

The paper restricts only T-bar to turns whose KV had been evicted (§4.2). The keywords
`queue_delays`, `tool_times` and `turn_counts` choose the turns from which T-bar, the distributions
P, and eta are estimated: "evicted" or "all".
"""

from __future__ import annotations

import math
from typing import Literal

from servers.policies.base import FREE, Costs, Request, Retention, pin
from servers.policies.estimates.durations import Durations
from servers.policies.estimates.queue_delays import WINDOW, QueueDelays
from servers.policies.estimates.recent import MAX_TOOLS, Recent
from servers.policies.estimates.tool_gaps import ToolGaps
from servers.policies.estimates.turn_counts import TurnCounts

K = 100
"""Number of samples that a distribution must exceed to be used (v3, §4.2)."""


def default_ttl_s(benefit_s: float) -> float:
    """Return T_default in seconds, the best TTL for Exp(1) tool times and eta = 1 (Continuum v3,
    §4.2): the tau that maximises (1 - exp(-tau)) * B - tau, where B is `benefit_s`. The derivative
    exp(-tau) * B - 1 is 0 at tau = ln B; for B <= 1 the best tau is 0."""
    return math.log(benefit_s) if benefit_s > 1 else 0.0


Turns = Literal["evicted", "all"]
"""The turns that an estimate uses."""


class TtlModel:
    def __init__(
        self,
        costs: Costs,
        k: int = K,
        window: int = WINDOW,
        *,
        queue_delays: Turns = "evicted",
        tool_times: Turns = "all",
        turn_counts: Turns = "all",
    ) -> None:
        if k < 0:
            raise ValueError(f"k must be at least 0, not {k}")
        self.costs = costs
        self.k = k
        self.delays = QueueDelays(window, queue_delays)
        self._times_of_pinned = tool_times == "all"
        self._counts_of_pinned = turn_counts == "all"
        self.turns = TurnCounts()
        self.all_tools = Durations()
        self.by_tool: Recent[Durations] = Recent(MAX_TOOLS)
        self._gaps = ToolGaps()

    def arrived(self, request: Request, now_s: float) -> None:
        gap = self._gaps.closed(request.program_id, request.arrival_s)
        if gap is not None and (self._times_of_pinned or not request.pinned):
            self.record(gap.tool, gap.seconds)

    def record(self, tool: str | None, seconds: float) -> None:
        self.all_tools.add(seconds)
        if tool is not None:
            self.by_tool.get_or_add(tool, Durations).add(seconds)

    def scheduled(self, request: Request, now_s: float) -> None:
        self.delays.scheduled(request, now_s)
        if request.pinned and not self._counts_of_pinned:
            self.turns.uncount(request.program_id)

    def observe_finish(self, request: Request, now_s: float) -> None:
        """Start timing the tool call, or count the program as finished."""
        self.turns.served(request.program_id)
        if request.ends_program:
            self.program_ended(request.program_id)
        else:
            self._gaps.opened(request.program_id, request.tool, now_s)

    def retention(self, request: Request) -> Retention:
        if request.ends_program:
            return FREE
        rebuild_s = self.costs.rebuild_s(request.prompt_tokens + request.output_tokens)
        t_bar_s, eta = self.delays.mean_s, self.turns.eta
        tool = request.tool
        stage, times = "all-tools", self.all_tools
        if len(self.all_tools) <= self.k:
            stage = "default"
            ttl_s = default_ttl_s(t_bar_s + rebuild_s)
        else:
            of_tool = self.by_tool.get(tool) if tool is not None else None
            if of_tool is not None and len(of_tool) > self.k:
                stage, times = "tool", of_tool
            ttl_s = times.best_ttl_s(t_bar_s * eta + rebuild_s)
        return pin(
            ttl_s,
            tool=tool,
            stage=stage,
            samples=len(times),
            T_bar_s=t_bar_s,
            eta=eta,
            rebuild_s=rebuild_s,
        )

    def program_ended(self, program_id: str) -> None:
        self.turns.ended(program_id)
        self._gaps.forget(program_id)
