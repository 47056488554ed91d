"""The policy of the authors' public fork of vLLM (implementation analysis, §4-§8; v1, §4.5).

A tool whose mean time is at most 2.0 s is pinned for 2.0 s, else its KV is freed; a tool not seen
before counts as 0 s; a turn without a tool call leaves no pin. A pin retains the whole request,
including its partly filled last block. The tool is the first word of the bash block, so that
`cd x && pytest` counts as cd.
Waiting turns: programs with a pin first, then program arrival; a preempted turn returns to the
front of the list, but its position there only decides among turns of the same program (§7.1, §8.3).
The newest program whose turn is not its last is preempted, else the newest; the pin with the latest
expiry is released first (§8.2).

Departs from the fork:
- concurrent turns with the same or no program id do not crash it (execution note §5);
- the fork takes a pin when at most one turn runs and that turn needs memory; here pins are also
  released when no turn runs or loads and the head of the queue does not fit;
- the fork leaves a pin in place until the program's next turn finishes; here it ends when that
  turn is admitted, since the turn itself then holds the KV;
- an answer's thinking text does not hide its tool call, nor do several bash blocks;
- a client may not mark last turns; then a turn that calls no tool is the last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Costs, Need, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.estimates.moments import Moments
from servers.policies.estimates.recent import MAX_TOOLS, Recent
from servers.policies.estimates.tool_gaps import ToolGaps

THRESHOLD_S = 2.0
"""The longest mean time of a tool whose KV is pinned, and the TTL of the pin (§5.3)."""


def first_word(request: Request) -> str | None:
    """The tool as the fork reads it: the literal first word of the command (§4.2)."""
    words = request.tools[0].split() if request.tools else []
    return words[0] if words else None


@mypyc_attr(allow_interpreted_subclasses=True)
class ContinuumPreview(Policy):
    """Continuum's public code: KV is kept for 2 s after tools that take 2 s or less."""

    name = "continuum-preview"
    source = "implementation analysis, §4-§8"
    needs: ClassVar[tuple[Need, ...]] = ("tool names", "ends of programs")
    checked: ClassVar[str] = "yes: by an analysis of the authors' fork"

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self._gaps = ToolGaps()
        self._by_tool: Recent[Moments] = Recent(MAX_TOOLS)

    def arrived(self, request: Request, now_s: float) -> None:
        gap = self._gaps.closed(request.program_id, request.arrival_s)
        if gap is not None and gap.tool is not None:
            self._by_tool.get_or_add(gap.tool, Moments).add(gap.seconds)

    def finished(self, request: Request, now_s: float) -> Retention:
        tool = first_word(request)
        if request.ends_program or tool is None:
            self._gaps.forget(request.program_id)
            return FREE
        self._gaps.opened(request.program_id, tool, now_s)
        times = self._by_tool.get(tool)
        mean_s = times.mean if times is not None else 0.0
        ttl_s = THRESHOLD_S if mean_s <= THRESHOLD_S else 0.0
        samples = times.samples if times is not None else 0
        return pin(ttl_s, whole_request=True, tool=tool, mean_s=mean_s, samples=samples)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._gaps.forget(program_id)

    def rank(self, request: Request, now_s: float) -> Rank:
        front = not request.preempted
        return (not request.pinned, request.program_arrival_s, front, request.id)

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        unfinished = [r for r in running if not r.is_last]
        return max(unfinished or running, key=lambda r: r.program_arrival_s)

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return sorted(pins, key=lambda p: (-p.expires_at_s, p.request.id))
