"""Continuum as first published: TTL from a Bernstein bound (Continuum v1, §4.2-§4.4).

    TTL = T_default^2 / bound(f) * (1 + alpha * AvgTurns)
    bound(f) = T_default if |S| < N;  B_f(delta) if |S_f| >= N;  else B(delta)
    B(delta) = mean + sqrt(2 * variance * ln(3/delta) / |S|) + 3 * b * ln(3/delta) / |S|

Waiting turns (§4.4) and pins to release (§5.3) have the order of `continuum`.

The paper calls delta, N and T_default tunable, and gives no value for them, alpha or b. Taken
here: T_default = 2 s, the threshold of the authors' public fork; N = 100, as K in v3;
delta = 0.05, the 95% of v1's Fig. 11; b = 30 s, the default command time-out of mini-swe-agent;
alpha = 0.1, so that ten turns double a TTL. All are keywords.
AvgTurns is 0 until a program has finished. Tool times above b are recorded as they are, although
the inequality assumes that there are none. A turn with no readable tool is judged by the bound
over all tools. m(r), which §4.3 defines and does not use, is not computed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Need, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.estimates.moments import Moments
from servers.policies.estimates.recent import MAX_TOOLS, Recent
from servers.policies.estimates.tool_gaps import ToolGaps
from servers.policies.estimates.turn_counts import TurnCounts
from servers.policies.program_order import latest_programs_first, pinned_programs_first


def bernstein_bound_s(times: Moments, delta: float, longest_s: float) -> float:
    """Upper bound of the mean with confidence 1 - delta (§4.2; Maurer and Pontil 2009)."""
    log_per_sample = math.log(3 / delta) / times.samples
    deviation_s = math.sqrt(2 * times.variance * log_per_sample)
    return times.mean + deviation_s + 3 * longest_s * log_per_sample


@mypyc_attr(allow_interpreted_subclasses=True)
class ContinuumV1(Policy):
    """Continuum's first version: the TTL is from a bound on the mean tool time."""

    name = "continuum-v1"
    source = "Continuum v1, §4.2-§4.4"
    needs: ClassVar[tuple[Need, ...]] = ("tool names", "ends of programs")
    checked: ClassVar[str] = "no: the authors' fork has no such bound"

    def __init__(
        self,
        costs: Costs,
        *,
        default_ttl_s: float = 2.0,
        n: int = 100,
        delta: float = 0.05,
        longest_s: float = 30.0,
        alpha: float = 0.1,
        reclaim_when: Literal["stuck", "pressure"] = "stuck",
    ) -> None:
        super().__init__(costs)
        if default_ttl_s <= 0 or n < 1 or not 0 < delta < 1 or longest_s < 0 or alpha < 0:
            raise ValueError(
                "default_ttl_s must be above 0, n at least 1, delta between 0 and 1, longest_s and "
                "alpha at least 0"
            )
        self.default_ttl_s, self.n, self.delta = default_ttl_s, n, delta
        self.longest_s, self.alpha = longest_s, alpha
        self.reclaim_when = reclaim_when
        self._gaps = ToolGaps()
        self._turns = TurnCounts()
        self._all_tools = Moments()
        self._by_tool: Recent[Moments] = Recent(MAX_TOOLS)

    def arrived(self, request: Request, now_s: float) -> None:
        gap = self._gaps.closed(request.program_id, request.arrival_s)
        if gap is None:
            return
        self._all_tools.add(gap.seconds)
        if gap.tool is not None:
            self._by_tool.get_or_add(gap.tool, Moments).add(gap.seconds)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._turns.served(request.program_id)
        if request.ends_program:
            self.program_ended(request.program_id, now_s)
            return FREE
        self._gaps.opened(request.program_id, request.tool, now_s)
        stage, times, bound_s = self._bound(request.tool)
        average = self._turns.average
        ttl_s = self.default_ttl_s**2 / bound_s * (1 + self.alpha * average)
        return pin(
            ttl_s,
            tool=request.tool,
            stage=stage,
            samples=times.samples,
            bound_s=bound_s,
            average_turns=average,
        )

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._turns.ended(program_id)
        self._gaps.forget(program_id)

    def rank(self, request: Request, now_s: float) -> Rank:
        return pinned_programs_first(request)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return latest_programs_first(pins)

    def _bound(self, tool: str | None) -> tuple[str, Moments, float]:
        if self._all_tools.samples < self.n:
            return "default", self._all_tools, self.default_ttl_s
        stage, times = "all-tools", self._all_tools
        own = self._by_tool.get(tool) if tool is not None else None
        if own is not None and own.samples >= self.n:
            stage, times = "tool", own
        return stage, times, bernstein_bound_s(times, self.delta, self.longest_s)
