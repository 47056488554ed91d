"""Soft TTL whose time is learned: KV of open sessions is kept for most of the gaps between turns.

Source: the timing part of SAECache (arXiv:2605.18825) as in llm-d-router PR #2928: gaps between the
turns of a session follow a log-normal distribution, whose parameters are learned online. Here
those above 0 of the last `window` gaps of all programs are fitted, and the TTL is the time within
which the share `within` of these ends; `default_ttl_s` until there are `window` gaps. Neither text
states the share.
"""

from __future__ import annotations

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import Costs, Request, Retention
from servers.policies.estimates.lognormal import LogNormalTimes
from servers.policies.estimates.tool_gaps import ToolGaps
from servers.policies.soft_ttl import SoftTtl


@mypyc_attr(allow_interpreted_subclasses=True)
class LearnedTtl(SoftTtl):
    """Soft TTL as long as most gaps between turns, by a log-normal fit of the last ones."""

    name = "learned-ttl"
    source = "arXiv:2605.18825, from a summary; llm-d-router PR #2928"

    def __init__(
        self,
        costs: Costs,
        *,
        within: float = 0.9,
        window: int = 100,
        default_ttl_s: float = 60.0,
    ) -> None:
        super().__init__(costs, ttl_s=default_ttl_s)
        if not 0 < within < 1 or window < 1:
            raise ValueError("within is a share between 0 and 1, and window at least 1 gap")
        self._within = within
        self._times = LogNormalTimes(window)
        self._gaps = ToolGaps()

    def arrived(self, request: Request, now_s: float) -> None:
        gap = self._gaps.closed(request.program_id, request.arrival_s)
        if gap is not None:
            self._times.add(gap.seconds)
            self._ttl_s = self._times.quantile_s(self._within) or self._ttl_s

    def finished(self, request: Request, now_s: float) -> Retention:
        if not request.ends_program:
            self._gaps.opened(request.program_id, request.tool, now_s)
        return super().finished(request, now_s)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._gaps.forget(program_id)
