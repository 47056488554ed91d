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

Of the contexts that it pays to release, the one whose release would waste most stays until a turn
lacks memory; the others are released at once. A running turn that lacks memory takes that context,
or else the running turn of the latest program arrival is preempted, which may be itself.

Waiting turns (keyword `queue_order`):
- "program", the default: preserved; then, over a tier, those whose KV is swapped out, preempted or
  released; then all others; each by arrival of the program. It is the authors' order: there a
  request continues through its tool calls, so that its arrival is that of the program, resumed
  preserved requests are among the running ones, and preempted ones go back by arrival.
- "turn": by arrival of the turn, preempted first, as vLLM's queue orders them. A preserved context
  does not move its turn forward.
- "preserved_turn": preserved, then by arrival of the turn.
Once the next turn has arrived the tool call is over, and `review` no longer releases its context.

The formulas, the order and the victim were checked against the authors' code
(`vllm/core/scheduler_v2.py`, `policy.py`), not against the paper's text. Departs from that code:
- its constants of T_fwd are fits to one machine; here they are the profile's;
- it counts only the marginal time of a recomputed chunk against the batch, here all of it counts;
- it takes a call's remaining time as known; here it is estimated as above;
- it releases and swaps contexts by blocks, from the end; here whole contexts are released;
- before running turns it preempts those that its limit of tokens or swaps delays in a step. vLLM
  has no such turns;
- with nothing waiting it discards the oldest swapped request, which a tier does not need.
If no other turn can free blocks, further contexts are released, longest since the call first.
`reclaim_when="stuck"` releases contexts for lack of memory only then, and with "pressure" any
context may be, greatest waste first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Need, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.estimates.recent import Recent
from servers.policies.program_order import of_latest_program


@mypyc_attr(allow_interpreted_subclasses=True)
class Infercept(Policy):
    """KV is preserved, discarded or swapped during a tool call, by least waste."""

    name = "infercept"
    source = "arXiv:2402.01869, §4; Continuum v3, §6.1"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "yes: formulas, order and victim, by reading"
    reviews_pins: ClassVar[bool] = True

    def __init__(
        self,
        costs: Costs,
        *,
        reclaim_when: Literal["overdue", "stuck", "pressure"] = "overdue",
        queue_order: Literal["program", "turn", "preserved_turn"] = "program",
    ) -> None:
        super().__init__(costs)
        self.reclaim_when = "stuck" if reclaim_when == "stuck" else "pressure"
        self.keeps_all_but_overdue = reclaim_when == "overdue"
        self.queue_order = queue_order
        self._returned: Recent[None] = Recent()
        """Programs whose tool call has ended and whose next turn has not finished."""
        self._next_release_s = math.inf
        """No other context than `_overdue` is due before, unless the batch becomes smaller than
        `_batch_tokens`."""
        self._batch_tokens = math.inf
        """Context of the batch at the last review of all contexts; infinite before the next."""
        self._overdue: Pin | None = None
        """The context that is due, and stays until a turn lacks memory."""

    def discard_waste(self, tokens: int, batch_tokens: int) -> float:
        """Return the token-seconds lost by recomputing a context beside a batch."""
        own = 0.5 * tokens if tokens > self.costs.step_tokens else tokens
        return self.costs.prefill_s(tokens) * (own + batch_tokens)

    def swap_waste(self, tokens: int) -> float:
        """Return the token-seconds lost by a reload; infinite without an offload tier."""
        return math.inf if self.costs.reload_s is None else self.costs.reload_s(tokens) * tokens

    def release_waste(self, tokens: int, batch_tokens: int) -> float:
        """Return the token-seconds lost by releasing a context."""
        return min(self.discard_waste(tokens, batch_tokens), self.swap_waste(tokens))

    def held_for_s(self, tokens: int, batch_tokens: int) -> float:
        """Return for how many seconds preserving a context wastes less than releasing it."""
        return self.release_waste(tokens, batch_tokens) / tokens if tokens else 0.0

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
        self._batch_tokens = math.inf
        return pin(math.inf, tool=request.tool, at_least_s=held_s)

    def aborted(self, request: Request, now_s: float) -> None:
        self._returned.pop(request.program_id)
        self._batch_tokens = math.inf

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._returned.pop(program_id)
        self._batch_tokens = math.inf

    def woke(self, now_s: float) -> Iterable[int]:
        return ()

    def rank(self, request: Request, now_s: float) -> Rank:
        if self.queue_order == "turn":
            return (not request.preempted, request.arrival_s, request.id)
        if self.queue_order == "preserved_turn":
            return (not request.pinned, request.arrival_s, request.id)
        tier = self.costs.reload_s is not None
        swapped = tier and (request.preempted or request.index > 0)
        return (not request.pinned, not swapped, request.program_arrival_s, request.id)

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        return of_latest_program(running)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        if self.keeps_all_but_overdue:
            overdue = self._overdue
            if overdue is None or overdue.program_id in self._returned or overdue not in pins:
                return []
            return [overdue]
        waste = self.release_waste
        return sorted(pins, key=lambda p: (-waste(p.tokens, 0), p.pinned_at_s, p.request.id))

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        released: list[Pin] = []
        most, kept, overdue = 0.0, None, self._overdue
        if now_s < self._next_release_s and batch_tokens >= self._batch_tokens:
            pins = [overdue] if overdue is not None and overdue in pins else []
        else:
            self._next_release_s, self._batch_tokens = math.inf, float(batch_tokens)
        for held in pins:
            if held.program_id in self._returned:
                continue
            waste = self.release_waste(held.tokens, batch_tokens)
            due_s = held.pinned_at_s + (waste / held.tokens if held.tokens else 0.0)
            if due_s > now_s:
                self._next_release_s = min(self._next_release_s, due_s)
            elif waste > most:
                if kept is not None:
                    released.append(kept)
                most, kept = waste, held
            else:
                released.append(held)
        self._overdue = kept
        return released

    def wake_s(self, now_s: float) -> float | None:
        """Return the first due time at the last review of all contexts. A growing batch makes
        discarding more expensive, so no due time becomes earlier. A due time in the past belongs to
        a pin that was released otherwise, since each step reviews the pins that are due."""
        due_s = self._next_release_s
        return due_s if now_s < due_s < math.inf else None
