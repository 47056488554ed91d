"""A bound: a policy that knows each tool's time and each program's remaining work.

No real system can know these. The bound shows how much of the possible gain other policies reach.
It is not a proven optimum: each rule is the best known one for its own decision.

Waiting turns: those whose KV is held, then the program with the least remaining work (SRPT), which
is the time to prefill its remaining prompts plus a one-token step for each remaining output token.
Retention: KV is held exactly until the next turn if the gap costs less memory time than the
queueing and the rebuild that it saves. A rebuild stalls the whole batch, which in a contended
engine is about `BATCH_CONTEXTS` contexts (InferCept's (C + C_batch) / C). Pins are released by
Belady's rule, longest until next use first; the victim is the turn with the most remaining work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from servers.compiled_core import mypyc_attr
from servers.policies.base import (
    FREE,
    Costs,
    Future,
    Oracle,
    Pin,
    Rank,
    Request,
    Retention,
    pin,
)
from servers.policies.estimates.queue_delays import QueueDelays

BATCH_CONTEXTS = 10
"""Measured: 10 is better than 1 and 3 on the shipped pack and on real traces. Infinity gains little
more, and loses where a gap lasts a night because the tool is a person."""
MARGIN_S = 1e-3
"""A pin lasts this much longer than its gap, so that a turn that is due now still finds it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Clairvoyant(Oracle):
    """A bound that knows each tool's time and each program's remaining work."""

    name = "clairvoyant"
    source = "a bound of ours; Belady 1966, Schrage 1968"

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self._futures: dict[int, Future] = {}
        self._work_s: dict[int, float] = {}
        self._delays = QueueDelays()
        self._token_s = costs.prefill_s(1)

    def foresee(self, request: Request, future: Future) -> None:
        self._futures[request.id] = future
        prefill_s = self.costs.prefill_s(future.remaining_prompt_tokens)
        self._work_s[request.id] = prefill_s + future.remaining_output_tokens * self._token_s

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._delays.scheduled(request, now_s)

    def finished(self, request: Request, now_s: float) -> Retention:
        gap_s = self._futures[request.id].tool_gap_s
        self._forget(request)
        if gap_s is None:
            return FREE
        rebuild_s = self.costs.rebuild_s(request.prompt_tokens + request.output_tokens)
        t_bar_s = self._delays.mean_s
        worth = gap_s < BATCH_CONTEXTS * (t_bar_s + rebuild_s)
        ttl_s = gap_s + MARGIN_S if worth else 0.0
        return pin(ttl_s, tool_gap_s=gap_s, T_bar_s=t_bar_s, rebuild_s=rebuild_s)

    def aborted(self, request: Request, now_s: float) -> None:
        self._forget(request)

    def rank(self, request: Request, now_s: float) -> Rank:
        work_s = self._work_s[request.id]
        return (not request.pinned, not request.preempted, work_s, request.id)

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        return max(running, key=lambda r: (self._work_s[r.id], r.id))

    def reclaim(self, pins: Collection[Pin], now_s: float) -> Iterable[Pin]:
        """Return the pins in order of next use, latest first: a pin expires at its next use."""
        return sorted(pins, key=lambda p: (-p.expires_at_s, p.request.id))

    def _forget(self, request: Request) -> None:
        self._futures.pop(request.id, None)
        self._work_s.pop(request.id, None)
