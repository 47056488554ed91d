"""Eviction by predicted time to reuse, and prefix-aware order (CacheWise, arXiv:2606.16824).

Order: the waiting turn that needs the fewest additional KV blocks goes first, of equal ones the
earliest. Eviction: free memory first, then the KV of finished programs, then the KV of the program
whose next turn is expected last, which is

    E[S - t | S > t],  S: times of the tool,  t: time since the call.

Source: the abstract, and an independent reproduction that states the paper's equations and rebuilds
them on the authors' fork. That fork (`cachewise-project/vllm`, `vllm/v1/core/block_pool.py`,
`cachewise_policy.py`) agrees in the order of eviction, but its score is a placeholder, and its
queue prefers the longest cached prefix. The paper's text was not at hand.

Here the KV of every turn that is not the last is pinned without limit, and pins give way to any
turn that lacks blocks, in the order above. So nothing is held that another turn can use.

The source leaves open, or departs:
- times are learned on the server, per tool, from the latest 1,000 calls. The authors train survival
  curves offline, also from similar arguments of the call, which a server sees only as text;
- of a tool without a longer call the calls of all tools count; without any longer call the next
  turn is expected now, and of such contexts the longest unused goes first;
- blocks are evicted by context, not one by one;
- what a turn needs is its prompt less its program's pinned context. The cached prefix that programs
  share, and KV in an offload tier, do not count;
- the authors rank the blocks again every three steps, here each time that memory is needed.
There is no term of age, neither here nor in the source: under overload turns with long contexts
that were evicted wait as long as shorter ones arrive.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Need, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.estimates.recent import MAX_TOOLS, Recent
from servers.policies.estimates.remaining_times import RemainingTimes
from servers.policies.estimates.tool_gaps import ToolGaps


@mypyc_attr(allow_interpreted_subclasses=True)
class CacheWise(Policy):
    """KV is evicted by predicted time to reuse; the turn that needs the least memory goes first."""

    name = "cachewise"
    source = "arXiv:2606.16824"
    needs: ClassVar[tuple[Need, ...]] = ("tool names", "ends of programs")
    checked: ClassVar[str] = (
        "in part: the order of eviction, by reading; the fork lacks the predictor"
    )
    reclaim_when: Literal["stuck", "pressure"] = "pressure"

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self._gaps = ToolGaps()
        self._tools: Recent[RemainingTimes] = Recent(MAX_TOOLS)
        self._all_tools = RemainingTimes()
        self._pinned_tokens: Recent[int] = Recent()
        """Tokens of the context that is pinned for a program."""
        self._returned: Recent[int] = Recent()
        """The latest turn of each program that waits or runs."""

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        self._returned[request.program_id] = request.id
        time = self._gaps.closed(request.program_id, request.arrival_s)
        if time is not None:
            self._all_tools.add(time.seconds)
            if time.tool is not None:
                self._tools.get_or_add(time.tool, RemainingTimes).add(time.seconds)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._leave(request)
        if request.ends_program:
            self._gaps.forget(request.program_id)
            return FREE
        self._gaps.opened(request.program_id, request.tool, now_s)
        return pin(math.inf, tool=request.tool, expected_s=self.remaining_s(request.tool, 0.0))

    def aborted(self, request: Request, now_s: float) -> None:
        self._leave(request)

    def pinned(self, pin: Pin, now_s: float) -> None:
        self._pinned_tokens[pin.program_id] = pin.tokens

    def unpinned(self, pin: Pin, now_s: float) -> None:
        self._pinned_tokens.pop(pin.program_id)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._gaps.forget(program_id)
        self._returned.pop(program_id)

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        held = (self._pinned_tokens.get(request.program_id) or 0) if request.pinned else 0
        missing = max(request.prompt_tokens - held, 0)
        return (missing, request.arrival_s, request.id)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return sorted(pins, key=lambda p: (-self.reuse_in_s(p, now_s), p.pinned_at_s, p.request.id))

    def reuse_in_s(self, held: Pin, now_s: float) -> float:
        """Return the expected time until the next turn of the pin's program, 0 if it is there."""
        if held.program_id in self._returned:
            return 0.0
        return self.remaining_s(held.request.tool, now_s - held.pinned_at_s)

    def remaining_s(self, tool: str | None, elapsed_s: float) -> float:
        """Return the expected remaining time of a tool call; 0 if no call has taken longer."""
        times = None if tool is None else self._tools.get(tool)
        found = None if times is None else times.after_s(elapsed_s)
        if found is None:
            found = self._all_tools.after_s(elapsed_s)
        return 0.0 if found is None else found

    def _leave(self, request: Request) -> None:
        if self._returned.get(request.program_id) == request.id:
            self._returned.pop(request.program_id)
