"""Preserve, discard or swap by least waste (InferCept, arXiv:2402.01869; Continuum v3, §3.2, §6.1).

At a tool call, for a context of C tokens and a running batch of C_batch, wasted token-seconds:

    preserve  T_int * C
    discard   T_fwd(C) * (C + C_batch), own part halved when recomputed in chunks
    swap      T_reload(C) * C, with an offload tier

The least waste decides. It is computed again in each step, with T_int = the time since the call.
At the call it is 0, so every context is preserved first, and is released once holding it has wasted
as much as releasing it would. Swap is v3's adaptation: the tier copies in the background, so a swap
costs the request its own reload and stalls no other (InferCept: 2 * T_swap(C) * C_batch). Without
an offload tier the choice is between the first two. Discard and swap release the context in the
same way, since with a tier the engine has a copy already.

Waiting turns: preempted, preserved, then program arrival. The authors' scheduler resumes preserved
requests among the running ones, and orders the rest by the first arrival of the request, which
there continues through its tool calls. The keyword `queue_order="turn"` orders waiting turns by
their own arrival instead, as vLLM's queue does; a preserved context does not move its turn forward.
With "preserved_turn" it does, and the turns of released contexts are ordered by their own arrival.
Once the next turn has arrived the tool call is over, and `review` no longer releases its context.

The formulas were checked against the authors' code (`vllm/core/scheduler_v2.py`), not against the
paper's text. Departs from that code:
- its constants of T_fwd are fits to one machine; here they are the profile's;
- it takes a call's remaining time as known; here it is estimated as above;
- it keeps the most wasteful context until memory is needed; here that context is released at once;
- before that it never releases a preserved context for a waiting turn; `reclaim_when="stuck"`, the
  default, differs only in that it resolves a deadlock, longest since the call first. With
  "pressure" they are released at every failed admission.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import ClassVar, Literal

from servers.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.estimates.recent import Recent
from servers.policies.program_order import pinned_programs_first


@mypyc_attr(allow_interpreted_subclasses=True)
class Infercept(Policy):
    """KV is preserved, discarded or swapped during a tool call, by least waste."""

    name = "infercept"
    source = "arXiv:2402.01869, §4; Continuum v3, §6.1"
    reviews_pins: ClassVar[bool] = True

    def __init__(
        self,
        costs: Costs,
        *,
        reclaim_when: Literal["stuck", "pressure"] = "stuck",
        queue_order: Literal["program", "turn", "preserved_turn"] = "program",
    ) -> None:
        super().__init__(costs)
        self.reclaim_when = reclaim_when
        self.queue_order = queue_order
        self._returned: Recent[None] = Recent()
        """Programs whose tool call has ended and whose next turn has not finished."""
        self._next_release_s = math.inf

    def discard_waste(self, tokens: int, batch_tokens: int) -> float:
        """Return the token-seconds lost by recomputing a context beside a batch."""
        own = 0.5 * tokens if tokens > self.costs.step_tokens else tokens
        return self.costs.prefill_s(tokens) * (own + batch_tokens)

    def swap_waste(self, tokens: int) -> float:
        """Return the token-seconds lost by a reload; infinite without an offload tier."""
        return math.inf if self.costs.reload_s is None else self.costs.reload_s(tokens) * tokens

    def held_for_s(self, tokens: int, batch_tokens: int) -> float:
        """Return for how many seconds preserving a context wastes less than releasing it."""
        waste = min(self.discard_waste(tokens, batch_tokens), self.swap_waste(tokens))
        return waste / tokens if tokens else 0.0

    def arrived(self, request: Request, now_s: float) -> None:
        if request.index > 0:
            self._returned[request.program_id] = None

    def finished(self, request: Request, now_s: float) -> Retention:
        self._returned.pop(request.program_id)
        tokens = request.prompt_tokens + request.output_tokens
        held_s = self.held_for_s(tokens, 0)
        if request.ends_program or held_s <= 0:
            return FREE
        self._next_release_s = min(self._next_release_s, now_s + held_s)
        return pin(math.inf, tool=request.tool, at_least_s=held_s)

    def aborted(self, request: Request, now_s: float) -> None:
        self._returned.pop(request.program_id)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._returned.pop(program_id)

    def rank(self, request: Request, now_s: float) -> Rank:
        if self.queue_order == "program":
            return pinned_programs_first(request)
        after_pinned = self.queue_order == "preserved_turn" and not request.pinned
        return (not request.preempted, after_pinned, request.arrival_s, request.id)

    def reclaim(self, pins: Collection[Pin], now_s: float) -> Iterable[Pin]:
        return sorted(pins, key=lambda p: (p.pinned_at_s, p.request.id))

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        released = []
        self._next_release_s = math.inf
        for held in pins:
            if held.program_id in self._returned:
                continue
            due_s = held.pinned_at_s + self.held_for_s(held.tokens, batch_tokens)
            if due_s <= now_s:
                released.append(held)
            else:
                self._next_release_s = min(self._next_release_s, due_s)
        return released

    def wake_s(self, now_s: float) -> float | None:
        """Return the first due time at the last review. A growing batch makes discarding more
        expensive, so no due time becomes earlier. A due time in the past belongs to a pin that was
        released otherwise, since each step reviews the pins that are due."""
        due_s = self._next_release_s
        return due_s if now_s < due_s < math.inf else None
