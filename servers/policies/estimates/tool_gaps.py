"""Tool times as the server observes them (Continuum v3, §5.1: recording the tool finish time).

In: turns as they finish and arrive, seconds. Out: a tool's time, which is the time from a turn's
finish to the arrival of its program's next turn, or until the engine knows of it. If turns of a
program overlap, the gap begins at the latest finish and ends at the next arrival. An arrival
without a preceding finish ends no gap.
"""

from __future__ import annotations

from typing import NamedTuple

from servers.policies.estimates.recent import Recent


class ToolTime(NamedTuple):
    tool: str | None
    """None if no tool could be read from the answer."""
    seconds: float


class ToolGaps:
    def __init__(self) -> None:
        self._open: Recent[tuple[str | None, float]] = Recent()
        """The tool and the turn's finish time in seconds, by program."""

    def opened(self, program_id: str, tool: str | None, now_s: float) -> None:
        self._open[program_id] = tool, now_s

    def closed(self, program_id: str, until_s: float) -> ToolTime | None:
        if (gap := self._open.pop(program_id)) is None:
            return None
        tool, finished_s = gap
        return ToolTime(tool, max(until_s - finished_s, 0.0))

    def forget(self, program_id: str) -> None:
        self._open.pop(program_id)
