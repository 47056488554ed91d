"""Helpers for loaders that convert the LLM calls of an agent's trajectory to turns.

Lengths are in tokens, times in Unix seconds. `docs/reference/trace-formats.md` describes the
estimates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import brief
from traces.lenient import Repairs, tokens
from traces.program import Program, Provenance, SharedPrefix, Turn
from traces.token_counts import CHARACTERS_PER_TOKEN

COUNTING_ERROR = 0.05
"""A prompt that is shorter than the previous one by at most this share is assumed to repeat it.
Agents only append messages, but providers of one model count tokens differently, and a router may
change the provider between turns: in 80 trajectories of mini-swe-agent prompts shrink by at most
2.2%."""

GENERATION_START_S = 2.4
GENERATION_TOKENS_PER_S = 85.0
"""A generation of n tokens takes GENERATION_START_S + n / GENERATION_TOKENS_PER_S: fitted by least
absolute deviations to the 1,973 turns of 80 v1 trajectories of mini-swe-agent (gemini-3-pro) with
read-only commands."""


def generation_s(output_tokens: int) -> float:
    """Return the estimated duration of a generation."""
    return GENERATION_START_S + output_tokens / GENERATION_TOKENS_PER_S


@dataclass(slots=True)
class TrajectoryCall:
    prompt: int | None
    output: int | None
    reasoning: int
    started_s: float | None
    """Start of generation."""
    ended_s: float | None
    answered_s: float | None = None
    """Arrival of the last observation of its tools."""
    commands: list[str] = field(default_factory=list)
    tools: tuple[str, ...] = ()
    refused: bool = False
    """Whether the answer had a format error, so that no tool ran and the next prompt lacks it."""
    characters: int = 0

    def answered(self, time_s: float | None) -> None:
        """Record an observation."""
        if time_s is not None:
            self.answered_s = max(time_s, self.answered_s or time_s)

    def measured_gap_s(self, repairs: Repairs) -> float | None:
        """Return the seconds from the answer to the last observation; None if a time is missing."""
        if self.ended_s is None or self.answered_s is None:
            return None
        if self.answered_s < self.ended_s:
            repairs.add("an observation before its answer: tool gap set to 0")
        return max(0.0, self.answered_s - self.ended_s)


def first_count(usage: JsonObject, *names: str) -> int | None:
    return next((n for name in names if (n := tokens(usage.get(name))) is not None), None)


def fill_usage(calls: Sequence[TrajectoryCall], opening: int, repairs: Repairs) -> None:
    """Estimate the lengths of calls without usage. `opening` is the number of characters before the
    first call. Raises TraceRejected if no call has usage."""
    if not any(call.prompt for call in calls):
        raise TraceRejected("no token usage in any response: prompt lengths are unknown")
    context = 0
    for call in calls:
        if not call.output:
            repairs.add_inferred_count(
                f"a response with {brief(call.output)} output tokens: estimated from its length"
            )
            call.output = max(1, round(call.characters / CHARACTERS_PER_TOKEN))
        if not call.prompt:
            repairs.add_inferred_count(
                f"a response with {brief(call.prompt)} prompt tokens: set to the context before"
            )
            call.prompt = (context or max(1, round(opening / CHARACTERS_PER_TOKEN))) + 1
        context = call.prompt + call.output


def make_turn(
    calls: Sequence[TrajectoryCall],
    i: int,
    gap: tuple[float, Provenance],
    repairs: Repairs,
    kept_tokens: int | None = None,
) -> Turn:
    """Return the turn of call `i`. `gap` is the next tool gap in seconds and its provenance. Kept
    tokens follow from the lengths unless given."""
    if kept_tokens is None:
        kept_tokens = _kept(calls, i, repairs) if i else 0
    call = calls[i]
    return Turn(
        prompt_tokens=call.prompt or 1,
        output_tokens=call.output or 1,
        kept_tokens=kept_tokens,
        tools=call.tools,
        command="\n".join(call.commands) or None,
        tool_gap_s=round(gap[0], 3),
        gap_provenance=gap[1],
    )


def _kept(calls: Sequence[TrajectoryCall], i: int, repairs: Repairs) -> int:
    """Return the kept tokens of call `i`. Reasoning precedes the answer and is not sent again. If
    the previous response has reasoning, or does not fit into this prompt, only the previous prompt
    is repeated."""
    before, prompt = calls[i - 1], calls[i].prompt or 1
    previous = before.prompt or 1
    whole = previous + (before.output or 1)
    if not before.refused and not before.reasoning and prompt > whole:
        return whole
    if prompt > previous:
        return previous
    if prompt >= (1 - COUNTING_ERROR) * previous:
        repairs.add(
            "a prompt slightly shorter than the previous one: token counts assumed to differ"
        )
        return prompt - 1
    repairs.add("a prompt much shorter than the previous one: only the first prompt counts as kept")
    return min(calls[0].prompt or 1, prompt - 1)


def system_prefix(system: str, opening: int, first_prompt: int) -> SharedPrefix | None:
    """Return the system prompt as a prefix. Its length in tokens is estimated from its share of the
    first prompt's characters; `read_traces` uses the same length in all files with this text."""
    if not system or not opening:
        return None
    length = int(first_prompt * len(system) / opening)
    digest = hashlib.sha256(system.encode()).hexdigest()[:12]
    return SharedPrefix(f"system:{digest}", length) if length else None


def shortest_prefixes(programs: Sequence[Program]) -> list[Program]:
    """Use a prefix's shortest estimated length in all programs of a file."""
    shortest: dict[str, int] = {}
    for prefix in (program.prefix for program in programs if program.prefix is not None):
        shortest[prefix.id] = min(prefix.tokens, shortest.get(prefix.id, prefix.tokens))
    return [
        replace(p, prefix=SharedPrefix(p.prefix.id, shortest[p.prefix.id])) if p.prefix else p
        for p in programs
    ]


def unique_id(wanted: str, used: dict[str, int]) -> str:
    """Return an id that is not in `used`, and add it. The values are the last numbers assigned."""
    number = used.get(wanted, 0)
    id = wanted
    while id in used:
        number += 1
        id = f"{wanted}-{number + 1}"
    used[wanted] = number
    used.setdefault(id, 0)
    return id
