"""Tool times as the server sees them (Continuum v3, §5.1: recording the tool finish time).

In: turns as they finish and arrive, seconds. Out: a tool's time, which is the arrival of a
program's next turn minus the finish of the previous one. Where turns of one program overlap, the
gap opens at the latest finish and closes at the next arrival; an arrival with no open gap yields
none.
"""

from __future__ import annotations

from typing import NamedTuple

from servers.policies.estimates.recent import Recent


class ToolTime(NamedTuple):
    tool: str | None
    """None where the answer's tool call could not be read."""
    seconds: float


class ToolGaps:
    def __init__(self) -> None:
        self._open: Recent[ToolTime] = Recent()

    def opened(self, program_id: str, tool: str | None, now_s: float) -> None:
        self._open[program_id] = ToolTime(tool, now_s)

    def closed(self, program_id: str, arrival_s: float) -> ToolTime | None:
        gap = self._open.pop(program_id)
        return None if gap is None else ToolTime(gap.tool, max(arrival_s - gap.seconds, 0.0))

    def forget(self, program_id: str) -> None:
        self._open.pop(program_id)
