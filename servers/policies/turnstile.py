"""Programs are let in while their working sets fit, and keep their KV while it is worth its room.

Ours; docs/design/turnstile.md derives it.

Admission: a turn of a held program runs (`estimates.working_sets`). A turn of another one runs if
its working set fits beside the held programs'. If it does not, no later turn runs either,
so that no program waits forever.
Order: pinned programs first, then program arrival. The program that arrived last is preempted.
Retention: the pin lasts for the t that maximises P(S <= t) - a * E[min(S, t)], where S is the time
of the tool until the engine knows of the next turn, up to a step after its arrival with
asynchronous scheduling, and a = context / (KV tokens * rebuild_s): a hit saves the rebuild, and the
room costs its share of the device for as long as it is held. Over a tier, rebuild_s is a reload's,
and for the share of contexts that the tier loses, a prefill's (`estimates.lost_share`). With at
most `k` calls of a tool, S is over all tools; with at most `k` calls in all, the pin lasts 1 / a.
Pins are released for a turn that lacks blocks only if no other turn can free any, latest program
first.
"""

from __future__ import annotations

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
from servers.policies.estimates.gap_worth import GapWorth
from servers.policies.estimates.lost_share import LostShare
from servers.policies.estimates.recent import MAX_TOOLS, Recent
from servers.policies.estimates.tool_gaps import ToolGaps
from servers.policies.estimates.ttl_model import K
from servers.policies.estimates.working_sets import WorkingSets, reserve_turns_of
from servers.policies.program_order import latest_programs_first, of_latest_program


@mypyc_attr(allow_interpreted_subclasses=True)
class Turnstile(Policy):
    """Programs are let in while their working sets fit; KV is kept while it is worth its room."""

    name = "turnstile"
    source = "docs/design/turnstile.md"
    needs: ClassVar[tuple[Need, ...]] = ("tool names", "ends of programs")
    checked: ClassVar[str] = "ours: this is its code"

    def __init__(self, costs: Costs, *, reserve_turns: float | None = None, k: int = K) -> None:
        super().__init__(costs)
        if k < 0:
            raise ValueError(f"k must be at least 0, not {k}")
        if reserve_turns is None:
            reserve_turns = reserve_turns_of(costs)
        self.k = k
        self.working_sets = WorkingSets(costs.kv_tokens, reserve_turns)
        self._gaps = ToolGaps()
        self._all_tools = GapWorth()
        self._by_tool: Recent[GapWorth] = Recent(MAX_TOOLS)
        self._lost = LostShare() if costs.reload_s is not None else None

    def arrived(self, request: Request, now_s: float) -> None:
        self.working_sets.arrived(request)
        # Not `arrival_s`: until it knows of the turn, the engine may release its pin.
        gap = self._gaps.closed(request.program_id, now_s)
        if gap is not None:
            self._all_tools.add(gap.seconds)
            if gap.tool is not None:
                self._by_tool.get_or_add(gap.tool, GapWorth).add(gap.seconds)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self.working_sets.started(request, cached_tokens)
        if self._lost is not None:
            self._lost.scheduled(request, cached_tokens)

    def preempted(self, request: Request, now_s: float) -> None:
        self.working_sets.stopped(request)

    def aborted(self, request: Request, now_s: float) -> None:
        self.working_sets.stopped(request)

    def finished(self, request: Request, now_s: float) -> Retention:
        self.working_sets.stopped(request)
        if request.ends_program:
            return FREE
        self._gaps.opened(request.program_id, request.tool, now_s)
        context_tokens = request.prompt_tokens + request.output_tokens
        if self._lost is not None:
            self._lost.finished(request.program_id, context_tokens)
        rebuild_s = self._rebuild_s(context_tokens)
        room_s = self.costs.kv_tokens * rebuild_s / context_tokens
        stage, ttl_s = self._ttl_s(request.tool, room_s)
        return pin(ttl_s, tool=request.tool, stage=stage, room_s=room_s, rebuild_s=rebuild_s)

    def _rebuild_s(self, context_tokens: int) -> float:
        """Return the seconds that a pin of this context saves on average."""
        kept_s = self.costs.rebuild_s(context_tokens)
        if self._lost is None:
            return kept_s
        lost = self._lost.share
        return (1 - lost) * kept_s + lost * self.costs.prefill_s(context_tokens)

    def _ttl_s(self, tool: str | None, room_s: float) -> tuple[str, float]:
        """Return how the TTL was chosen, and the TTL. `room_s` is 1 / a."""
        stage, times = "all-tools", self._all_tools
        of_tool = None if tool is None else self._by_tool.get(tool)
        if of_tool is not None and of_tool.samples > self.k:
            stage, times = "tool", of_tool
        if times.samples <= self.k or room_s <= 0:
            return "default", room_s
        return stage, times.best_ttl_s(1 / room_s)

    def pinned(self, pin: Pin, now_s: float) -> None:
        self.working_sets.pinned(pin)

    def unpinned(self, pin: Pin, now_s: float) -> None:
        self.working_sets.unpinned(pin)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self.working_sets.ended(program_id)
        self._gaps.forget(program_id)
        if self._lost is not None:
            self._lost.ended(program_id)

    def rank(self, request: Request, now_s: float) -> Rank:
        # A preempted turn holds nothing, so it may not fit. Before the pinned programs it would
        # keep them from running, while their KV keeps it from fitting.
        return (not request.pinned, request.program_arrival_s, request.id)

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        return "run" if self.working_sets.fits(request) else "stop"

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        return of_latest_program(running)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return latest_programs_first(pins)
