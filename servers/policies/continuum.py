"""TTL retention after a tool call, pinned programs first (Continuum v3, §4 and §5).

The TTL is the argmax of eq. 2 (`ttl_model`). Waiting turns: preempted, then pinned, then program
arrival (§4.3). To make room, the pin of the latest program arrival is released first (§5.2).

The paper leaves these open; here
- the window of the mean queueing delay is 100 turns (keyword `window`);
- the turns that "had been evicted" are those whose program's KV is not pinned when they are
  admitted, whether or not prefix caching still holds some of it. T-bar is over these; the tool
  times and eta are over all turns (keywords `queue_delays`, `tool_times`, `turn_counts`);
- a program has finished when the client marks its turn as the last, or marks none and the turn
  calls no tool (§5.2), or when the engine reports the end of the program. A program that continues
  after a turn without a tool call counts as another one;
- eta has one pair (k, N - k) per turn of a finished program, k = 0 .. N - 1;
- eta is 1 before any program has finished, or when all had one turn, as in T_default;
- of equally good TTLs the smallest is taken;
- a turn that is not the last and has no readable tool is judged by the times of all tools;
- pins are released early only if no other turn can free blocks (for the head of the queue when no
  turn runs or loads, and for a turn that runs alone), as the heading "prevention of deadlocks"
  says; the text below it also allows any failed admission: `reclaim_when="pressure"`.
No other departure from the paper is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import Costs, Need, Pin, Policy, Rank, Request, Retention
from servers.policies.estimates.queue_delays import WINDOW
from servers.policies.estimates.ttl_model import K, TtlModel, Turns
from servers.policies.program_order import latest_programs_first, pinned_programs_first


@mypyc_attr(allow_interpreted_subclasses=True)
class Continuum(Policy):
    """KV is kept for a TTL from tool times and queueing delay; pinned programs first."""

    name = "continuum"
    source = "Continuum v3, §4-§5"
    needs: ClassVar[tuple[Need, ...]] = ("tool names", "ends of programs")
    checked: ClassVar[str] = "no: the authors' fork has no cost model"

    def __init__(
        self,
        costs: Costs,
        *,
        k: int = K,
        window: int = WINDOW,
        reclaim_when: Literal["stuck", "pressure"] = "stuck",
        queue_delays: Turns = "evicted",
        tool_times: Turns = "all",
        turn_counts: Turns = "all",
    ) -> None:
        super().__init__(costs)
        self.reclaim_when = reclaim_when
        self.model = TtlModel(
            costs,
            k,
            window,
            queue_delays=queue_delays,
            tool_times=tool_times,
            turn_counts=turn_counts,
        )

    def arrived(self, request: Request, now_s: float) -> None:
        self.model.arrived(request, now_s)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self.model.scheduled(request, now_s)

    def finished(self, request: Request, now_s: float) -> Retention:
        self.model.observe_finish(request, now_s)
        return self.model.retention(request)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self.model.program_ended(program_id)

    def rank(self, request: Request, now_s: float) -> Rank:
        return pinned_programs_first(request)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return latest_programs_first(pins)
