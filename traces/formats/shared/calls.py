"""The record of a call, and what turns an agent's calls into the turns of a program.

Lengths are in tokens, times in seconds. `docs/reference/trace-formats.md` describes the estimates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import brief
from traces.assumptions import Gap
from traces.lenient import MAX_GAP_S, Repairs, tokens
from traces.program import Provenance, SharedPrefix, Turn
from traces.token_counts import CHARACTERS_PER_TOKEN

COUNTING_ERROR = 0.05
"""A prompt that is shorter than the previous one by at most this share is assumed to repeat it.
Agents only append messages, but providers of one model count tokens differently, and a router may
change the provider between turns: in 80 trajectories of mini-swe-agent prompts shrink by at most
2.2%."""

COUNTS_DIFFER = "a prompt slightly shorter than the previous one: token counts assumed to differ"

UNASKED_TOOLS = frozenset(
    {
        *("Read", "Glob", "Grep", "LS", "NotebookRead", "TodoRead", "TodoWrite", "ToolSearch"),
        *("Task", "Agent", "BashOutput", "KillBash"),
        *("update_plan", "write_stdin", "tool_search_call"),
        *("read_file", "list_directory", "glob", "search_file_content"),
    }
)
"""Tools that agents run without a person's permission."""

GENERATION_START_S = 2.4
GENERATION_TOKENS_PER_S = 85.0
"""A generation of n tokens takes GENERATION_START_S + n / GENERATION_TOKENS_PER_S: fitted by least
absolute deviations to the 1,973 turns of 80 v1 trajectories of mini-swe-agent (gemini-3-pro) with
read-only commands."""


def generation_s(output_tokens: int) -> float:
    """Return the estimated duration of a generation."""
    return GENERATION_START_S + output_tokens / GENERATION_TOKENS_PER_S


@dataclass(slots=True)
class CalledTool:
    names: tuple[str, ...]
    called_s: float | None
    answered_s: float | None = None
    duration_s: float | None = None
    """The tool's own time, if measured. The result may come later, after a person's permission."""

    @property
    def may_wait_for_permission(self) -> bool:
        return self.duration_s is None and not UNASKED_TOOLS.issuperset(self.names)

    @property
    def finished_s(self) -> float | None:
        if self.answered_s is None or self.called_s is None or self.duration_s is None:
            return self.answered_s
        return min(self.answered_s, self.called_s + self.duration_s)


@dataclass(slots=True)
class Call:
    """One call of a model, as a file records it."""

    prompt: int = 0
    """Tokens of the whole prompt; 0 if unknown."""
    output: int = 0
    start_s: float | None = None
    end_s: float | None = None
    end_known: bool = True
    """Whether the end was recorded; otherwise it is an estimate."""
    cached: int | None = None
    """Prompt tokens that were read from a cache, if that is recorded."""
    kept: int | None = None
    """Tokens of the previous context that the prompt repeats, if recorded, or found by the
    reader."""
    hashes: Sequence[int | str] | None = None
    """Of the prompt's blocks, if recorded."""
    drops_output: bool = False
    """Whether the next prompt lacks a part of the output, such as reasoning, or all of it."""
    continues: int | None = -1
    """Index of the call whose context the prompt extends; -1 for the previous call, None if the
    prompt extends no context."""
    compacts: bool = False
    """Whether the call only writes a summary of the history for the next one."""
    called: dict[str, CalledTool] = field(default_factory=dict)
    """The tool calls in the answer by id, if their times are recorded."""
    is_late: bool = False
    """Whether `end_s` is when the call was written, which may be after its tools had ended."""
    message_s: float | None = None
    """Time of the last message before the next call that is not a tool's result."""
    tools: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    answered_s: float | None = None
    """Arrival of the last observation of its tools."""
    gap: Gap | None = None
    """The recorded time from the end of this call to the next one, if it is more accurate than the
    difference of their times."""
    gap_provenance: Provenance | None = None
    """Of that difference, if it does not follow from `end_known`."""
    characters: int = 0
    """Length of the answer's text."""
    opening: int = 0
    """Number of characters before the call."""
    prompt_messages: int = 0

    @property
    def tools_finished_s(self) -> float | None:
        finished_s = (tool.finished_s for tool in self.called.values())
        return max((s for s in finished_s if s is not None), default=None)

    def end_before_tools(self) -> None:
        """End a call that was written with its tools' results when the first tool began."""
        for tool in self.called.values():
            began_s, end_s = tool.called_s, tool.answered_s
            if began_s is None or end_s is None or not (self.is_late or end_s <= began_s):
                continue
            if tool.duration_s is not None:
                began_s = tool.called_s = min(began_s, end_s - tool.duration_s)
            if self.end_s is not None:
                self.end_s = min(self.end_s, began_s)

    def answered(self, time_s: float | None) -> None:
        """Record an observation."""
        if time_s is not None:
            self.answered_s = max(time_s, self.answered_s or time_s)

    def measured_gap(self, repairs: Repairs) -> Gap | None:
        """Return the time from the answer to the last observation; None if one is missing."""
        if self.end_s is None or self.answered_s is None:
            return None
        if self.answered_s < self.end_s:
            repairs.add("an observation before its answer: tool gap set to 0")
        return max(0.0, self.answered_s - self.end_s), Provenance.MEASURED


def stated_provenance(stated: object, repairs: Repairs) -> Provenance:
    """Return the origin of a gap that a file states."""
    if isinstance(stated, str) and stated in set(Provenance):
        return Provenance(stated)
    if stated:
        repairs.add(f"a gap with provenance {brief(stated)}: taken as unstated")
    return Provenance.UNSTATED


def first_count(usage: JsonObject, *names: str) -> int | None:
    return next((n for name in names if (n := tokens(usage.get(name))) is not None), None)


def fill_usage(calls: Sequence[Call], repairs: Repairs) -> None:
    """Estimate the lengths of calls without usage. Raises TraceRejected if no call has usage."""
    if not any(call.prompt for call in calls):
        raise TraceRejected("no token usage in any response: prompt lengths are unknown")
    context = 0
    for call in calls:
        if not call.output:
            repairs.add_inferred_count(
                "a response without output tokens: estimated from its length"
            )
            call.output = max(1, round(call.characters / CHARACTERS_PER_TOKEN))
        if not call.prompt:
            repairs.add_inferred_count(
                "a response without prompt tokens: set to the context before"
            )
            opening = max(1, round(calls[0].opening / CHARACTERS_PER_TOKEN))
            call.prompt = (context or opening) + 1
        context = call.prompt + call.output


def make_turn(calls: Sequence[Call], i: int, gap: Gap, repairs: Repairs) -> Turn:
    """Return the turn of call `i` of an agent that keeps at least its first prompt. `gap` is the
    next tool gap."""
    call = calls[i]
    kept = kept_tokens(calls[i - 1], call, repairs, calls[0]) if i else 0
    return turn_of(call, kept, gap)


def turn_of(call: Call, kept: int, gap: Gap) -> Turn:
    return Turn(
        prompt_tokens=call.prompt,
        output_tokens=call.output,
        kept_tokens=kept,
        tools=call.tools,
        command="\n".join(call.commands) or None,
        tool_gap_s=round(min(max(0.0, gap[0]), MAX_GAP_S), 3),
        gap_provenance=gap[1],
    )


def most_kept(before: Call, call: Call) -> int:
    """Return the most tokens of the previous call's context that a prompt can repeat."""
    return min(before.prompt + before.output, call.prompt - 1)


def kept_tokens(before: Call, call: Call, repairs: Repairs, first: Call | None = None) -> int:
    """Return the number of tokens of the previous call's context that a prompt repeats.

    A prompt that grows is assumed to repeat the previous one, as agents append, and the output if
    it is long enough and nothing of the output was dropped. A shorter one repeats its cached
    tokens, and the `first` prompt, if given; all of it if `first` is given and the counts only seem
    to differ.
    """
    whole, most = before.prompt + before.output, most_kept(before, call)
    if call.kept is not None:
        if call.kept > most:
            repairs.add("more kept tokens than the previous context or this prompt has: lowered")
        return min(call.kept, most)
    cached = min(call.cached or 0, most)
    if call.prompt > before.prompt:
        appended = call.prompt >= whole and not before.drops_output
        return most if appended else max(before.prompt, cached)
    if first is None:
        if call.cached is None:
            repairs.add("a prompt that does not grow: nothing of the previous one counts as kept")
        return cached
    if call.prompt >= (1 - COUNTING_ERROR) * before.prompt:
        repairs.add(COUNTS_DIFFER)
        return most
    repairs.add("a prompt much shorter than the previous one: only the first prompt counts as kept")
    return min(max(first.prompt, cached), most)


def system_prefix(system: str, opening: int, first_prompt: int) -> SharedPrefix | None:
    """Return the system prompt as a prefix. Its length in tokens is estimated from its share of the
    first prompt's characters; `read_traces` uses the same length in all files with this text."""
    if not system or not opening:
        return None
    length = int(first_prompt * len(system) / opening)
    digest = hashlib.sha256(system.encode()).hexdigest()[:12]
    return SharedPrefix(f"system:{digest}", length) if length else None


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
