"""A reference: a policy that knows each tool's time and each program's remaining work.

No real system can know these. The reference shows how much of the possible gain other policies
reach. It is not a proven optimum: each rule is the best known one for its own decision.

Admission: programs whose working sets fit, as in `turnstile`.
Waiting turns: those whose KV is pinned, then the program with the least remaining work (SRPT),
which is the time to prefill its remaining prompts plus a one-token step for each remaining output
token. The victim is the turn with the most remaining work. So long jobs wait, past capacity without
end.
Retention: KV is pinned until the next turn, if holding its share of the device for the gap
costs less than the rebuild: gap * context / KV tokens < rebuild_s. Pins are released by Belady's
rule, longest until next use first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import (
    FREE,
    Admit,
    Costs,
    Future,
    Need,
    Oracle,
    Pin,
    Rank,
    Request,
    Retention,
    pin,
)
from servers.policies.estimates.working_sets import WorkingSets, reserve_turns_of

MARGIN_S = 60.0
"""A pin lasts this much longer than its gap, so that the turn finds it when it joins a step, which
with asynchronous scheduling is up to two steps after it was sent. It ends when the turn joins."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Clairvoyant(Oracle):
    """A reference that knows each tool's time and each program's remaining work."""

    name = "clairvoyant"
    source = "a reference of ours; Belady 1966, Schrage 1968"
    needs: ClassVar[tuple[Need, ...]] = ("the future",)
    checked: ClassVar[str] = "a reference: there is no such system"

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self._gaps_s: dict[int, float | None] = {}
        self._work_s: dict[int, float] = {}
        self._token_s = costs.prefill_s(1)
        self._working_sets = WorkingSets(costs.kv_tokens, reserve_turns_of(costs))

    def foresee(self, request: Request, future: Future) -> None:
        self._gaps_s[request.id] = future.tool_gap_s
        prefill_s = self.costs.prefill_s(future.remaining_prompt_tokens)
        self._work_s[request.id] = prefill_s + future.remaining_output_tokens * self._token_s

    def arrived(self, request: Request, now_s: float) -> None:
        self._working_sets.arrived(request)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._working_sets.started(request, cached_tokens)

    def preempted(self, request: Request, now_s: float) -> None:
        self._working_sets.stopped(request)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._working_sets.stopped(request)
        gap_s = self._gaps_s[request.id]
        self._forget(request)
        if gap_s is None:
            return FREE
        context_tokens = request.prompt_tokens + request.output_tokens
        rebuild_s = self.costs.rebuild_s(context_tokens)
        worth = gap_s * context_tokens < self.costs.kv_tokens * rebuild_s
        ttl_s = gap_s + MARGIN_S if worth else 0.0
        return pin(ttl_s, tool_gap_s=gap_s, rebuild_s=rebuild_s)

    def aborted(self, request: Request, now_s: float) -> None:
        self._working_sets.stopped(request)
        self._forget(request)

    def pinned(self, pin: Pin, now_s: float) -> None:
        self._working_sets.pinned(pin)

    def unpinned(self, pin: Pin, now_s: float) -> None:
        self._working_sets.unpinned(pin)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._working_sets.ended(program_id)

    def rank(self, request: Request, now_s: float) -> Rank:
        return (not request.pinned, self._work_s[request.id], request.id)

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        return "run" if self._working_sets.fits(request) else "stop"

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        return max(running, key=lambda r: (self._work_s[r.id], r.id))

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        """Return the pins in order of next use, latest first: a pin expires at its next use."""
        return sorted(pins, key=lambda p: (-p.expires_at_s, p.request.id))

    def _forget(self, request: Request) -> None:
        self._gaps_s.pop(request.id, None)
        self._work_s.pop(request.id, None)
