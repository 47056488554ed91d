"""LLM calls of a finished trajectory, on their way to be turns: what all agents' formats share.

Lengths in tokens, moments in Unix seconds. What is estimated and why stands in
`docs/reference/trace-formats.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servers.errors import TraceRejected
from traces.lenient import Repairs, shown, tokens
from traces.program import Provenance, SharedPrefix, Turn

COUNTING_ERROR = 0.05
"""Providers of one model count tokens differently, and a router changes them between turns; agents
only ever append messages. In 80 trajectories of mini-swe-agent prompts shrink by 2.2% at most."""
CHARACTERS_PER_TOKEN = 3.3
"""Median of the same 80; only for turns whose usage is missing."""


@dataclass(slots=True)
class Call:
    prompt: int | None
    output: int | None
    reasoning: int
    started_s: float | None
    """Start of generation."""
    ended_s: float | None
    answered_s: float | None = None
    """When the last observation of its tools was there."""
    commands: list[str] = field(default_factory=list)
    tools: tuple[str, ...] = ()
    refused: bool = False
    """A format error: the answer is not in the next prompt, and no tool ran."""
    characters: int = 0

    def answered(self, moment_s: float | None) -> None:
        if moment_s is not None:
            self.answered_s = max(moment_s, self.answered_s or moment_s)

    def measured_gap_s(self, repairs: Repairs) -> float | None:
        """None where a time is missing."""
        if self.ended_s is None or self.answered_s is None:
            return None
        if self.answered_s < self.ended_s:
            repairs.add("an observation before its answer: its tool gap taken as 0")
        return max(0.0, self.answered_s - self.ended_s)


def first_count(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((n for name in names if (n := tokens(usage.get(name))) is not None), None)


def fill_usage(calls: Sequence[Call], opening: int, repairs: Repairs) -> None:
    """A turn without usage is estimated; without any usage there is no program. `opening`:
    characters of what was said before the first call."""
    if not any(call.prompt for call in calls):
        raise TraceRejected("no token usage in any response: prompt lengths are unknown")
    context = 0
    for call in calls:
        if not call.output:
            repairs.add(
                f"a response with {shown(call.output)} output tokens: estimated by its length"
            )
            call.output = max(1, round(call.characters / CHARACTERS_PER_TOKEN))
        if not call.prompt:
            repairs.add(
                f"a response with {shown(call.prompt)} prompt tokens: set to the context before"
            )
            call.prompt = (context or max(1, round(opening / CHARACTERS_PER_TOKEN))) + 1
        context = call.prompt + call.output


def make_turn(
    calls: Sequence[Call], i: int, gap: tuple[float, Provenance], repairs: Repairs
) -> Turn:
    """Of a call with its usage; `gap`: the seconds after it, and where they come from."""
    call = calls[i]
    return Turn(
        prompt_tokens=call.prompt or 1,
        output_tokens=call.output or 1,
        kept_tokens=_kept(calls, i, repairs) if i else 0,
        tools=call.tools,
        command="\n".join(call.commands) or None,
        tool_gap_s=round(gap[0], 3),
        gap_provenance=gap[1],
    )


def _kept(calls: Sequence[Call], i: int, repairs: Repairs) -> int:
    """Reasoning comes before the answer and is not sent again, so where there was some, or where
    the answer does not fit into the next prompt, only the previous prompt is repeated."""
    before, prompt = calls[i - 1], calls[i].prompt or 1
    previous = before.prompt or 1
    whole = previous + (before.output or 1)
    if not before.refused and not before.reasoning and prompt > whole:
        return whole
    if prompt > previous:
        return previous
    if prompt >= (1 - COUNTING_ERROR) * previous:
        repairs.add("a prompt a little shorter than the one before: two ways of counting assumed")
        return prompt - 1
    repairs.add("a prompt much shorter than the one before: only the first prompt counts as kept")
    return min(calls[0].prompt or 1, prompt - 1)


def system_prefix(system: str, opening: int, first_prompt: int) -> SharedPrefix | None:
    """Its tokens are its share of the first prompt's characters (`read_traces` makes the files that
    share it agree on one number)."""
    if not system or not opening:
        return None
    count = int(first_prompt * len(system) / opening)
    digest = hashlib.sha256(system.encode()).hexdigest()[:12]
    return SharedPrefix(f"system:{digest}", count) if count else None
