"""Helpers of loaders that make turns of the LLM calls in an agent's trajectory.

Lengths in tokens, moments in Unix seconds. `docs/reference/trace-formats.md` says what is
estimated, and why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servers.errors import TraceRejected
from traces.lenient import Repairs, brief, tokens
from traces.program import Provenance, SharedPrefix, Turn

COUNTING_ERROR = 0.05
"""A prompt that is shorter than the previous one by at most this share is taken to repeat it.
Agents only append messages, but providers of one model count tokens differently, and a router
changes the provider between turns: in 80 trajectories of mini-swe-agent prompts shrink by 2.2% at
most."""
CHARACTERS_PER_TOKEN = 3.3
"""Median of the same trajectories. Used for turns without recorded usage only."""


@dataclass(slots=True)
class Call:
    prompt: int | None
    output: int | None
    reasoning: int
    started_s: float | None
    """Start of generation."""
    ended_s: float | None
    answered_s: float | None = None
    """When the last observation of its tools arrived."""
    commands: list[str] = field(default_factory=list)
    tools: tuple[str, ...] = ()
    refused: bool = False
    """The answer had a format error: it is not in the next prompt, and no tool ran."""
    characters: int = 0

    def answered(self, moment_s: float | None) -> None:
        if moment_s is not None:
            self.answered_s = max(moment_s, self.answered_s or moment_s)

    def measured_gap_s(self, repairs: Repairs) -> float | None:
        """Seconds from the answer to the last observation; None if either time is missing."""
        if self.ended_s is None or self.answered_s is None:
            return None
        if self.answered_s < self.ended_s:
            repairs.add("an observation before its answer: its tool gap taken as 0")
        return max(0.0, self.answered_s - self.ended_s)


def first_count(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((n for name in names if (n := tokens(usage.get(name))) is not None), None)


def fill_usage(calls: Sequence[Call], opening: int, repairs: Repairs) -> None:
    """Estimate the lengths of calls without usage. `opening` is the number of characters in the
    messages before the first call. Raises TraceRejected if no call has usage."""
    if not any(call.prompt for call in calls):
        raise TraceRejected("no token usage in any response: prompt lengths are unknown")
    context = 0
    for call in calls:
        if not call.output:
            repairs.add(
                f"a response with {brief(call.output)} output tokens: estimated by its length"
            )
            call.output = max(1, round(call.characters / CHARACTERS_PER_TOKEN))
        if not call.prompt:
            repairs.add(
                f"a response with {brief(call.prompt)} prompt tokens: set to the context before"
            )
            call.prompt = (context or max(1, round(opening / CHARACTERS_PER_TOKEN))) + 1
        context = call.prompt + call.output


def make_turn(
    calls: Sequence[Call], i: int, gap: tuple[float, Provenance], repairs: Repairs
) -> Turn:
    """The turn of call `i`. `gap` is the tool gap after it in seconds, with its provenance."""
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
    """Reasoning precedes the answer and is not sent again. So if there was some, or if the answer
    does not fit into the next prompt, that repeats the previous prompt only."""
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
    """The system prompt as a prefix. Its length in tokens is estimated by its share of the first
    prompt's characters; `read_traces` gives all files with the same text the same length."""
    if not system or not opening:
        return None
    length = int(first_prompt * len(system) / opening)
    digest = hashlib.sha256(system.encode()).hexdigest()[:12]
    return SharedPrefix(f"system:{digest}", length) if length else None
