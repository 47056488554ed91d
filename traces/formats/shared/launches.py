"""Finds the tool calls that started a session's sub-agents, or gave them further tasks.

In: the tool calls of all agents that may have done so, and of each sub-agent its ids, its first
message or when it began. Out: its tool calls, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from heapq import heappop, heappush

from traces.formats.shared.sessions import Sent

EARLY_S = 1.0
"""A sub-agent begins at most this long before its tool call, since clocks are not exact."""


class Launches:
    def __init__(self, sent: Iterable[Sent], agents: Container[str] = ()) -> None:
        """`agents`: the ids of the known sub-agents, whose tool calls need no other evidence."""
        self._sent = list(sent)
        self._by_agent: dict[str, list[int]] = {}
        self._by_prompt: dict[str, deque[int]] = {}
        for number, each in enumerate(self._sent):
            if each.agent:
                self._by_agent.setdefault(each.agent, []).append(number)
            if each.prompt and each.agent not in agents:
                self._by_prompt.setdefault(each.prompt, deque()).append(number)
        timed = ((each.tool.called_s, n) for n, each in enumerate(self._sent))
        self._later = sorted(((s - EARLY_S, n) for s, n in timed if s is not None), reverse=True)
        """The tool calls that begin after the last sub-agent, the last one first."""
        self._begun: list[tuple[bool, int]] = []
        """A heap of the tool calls that had begun, those that started an agent first."""
        self._claimed: set[int] = set()

    def of(
        self, thread: str, ids: Iterable[str], prompt: str = "", began_s: float | None = None
    ) -> list[Sent]:
        """Return the tool calls of other agents with one of the sub-agent's ids, before them one
        with its first message as the prompt, or else the first one during which it began. Give
        `began_s` in the order in which sub-agents began."""
        found = self._with_id(ids, thread)
        same = self._by_prompt.get(prompt)
        if same and all(self._sent[number].prompt != prompt for number in found):
            first = same.popleft()
            found = [first, *found] if self._sent[first].thread != thread else found
        if not found and began_s is not None:
            found = self._during(began_s, thread)
            found = self._with_id({self._sent[n].agent for n in found}, thread) or found
        self._claimed.update(found)
        return [self._sent[number] for number in found]

    def _with_id(self, ids: Iterable[str], thread: str) -> list[int]:
        numbers = {number for id in ids for number in self._by_agent.get(id, ())}
        return sorted(number for number in numbers if self._sent[number].thread != thread)

    def _during(self, at_s: float, thread: str) -> list[int]:
        """Return the first tool call of another agent during which a sub-agent began, if possible
        one that started an agent."""
        while self._later and self._later[-1][0] <= at_s:
            _, number = self._later.pop()
            heappush(self._begun, (not self._sent[number].agent, number))
        found: list[int] = []
        kept: list[tuple[bool, int]] = []
        while self._begun and not found:
            _, number = place = heappop(self._begun)
            tool, is_own = self._sent[number].tool, self._sent[number].thread == thread
            is_over = (tool.answered_s or tool.called_s or 0.0) < at_s
            if not (is_own or is_over or number in self._claimed):
                found = [number]
            if is_own or found:
                kept.append(place)
        for place in kept:
            heappush(self._begun, place)
        return found
