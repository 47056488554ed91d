"""Converts spans of agents to programs.

In: `Span`s of any dialect. Out: a program for each session, for each sub-agent, and for calls that
overlap other calls of the same agent. The gap after a call is the time until the agent's next
request, measured. Lengths are in tokens, times in seconds. Rules:
`docs/reference/trace-formats.md`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from servers.basics.text import identifier
from traces.assumptions import Assumptions
from traces.formats.shared.calls import (
    Call,
    fill_usage,
    kept_tokens,
    most_kept,
    system_prefix,
    unique_id,
)
from traces.formats.shared.span_counts import read_once
from traces.formats.shared.span_groups import AgentSpans, groups
from traces.formats.shared.spans import Span, SpanTree
from traces.formats.shared.timed_calls import TOLERANCE_S, TimedAgent, make_programs
from traces.lenient import Repairs
from traces.merge import agree_on_prefixes
from traces.program import Message, Program

MAX_COMPARED = 100
"""Maximum number of parallel calls of an agent that a further call may continue."""
SYSTEM_ROLES = ("system", "developer")


@dataclass(slots=True)
class _Lane:
    """Calls that follow each other."""

    id: str
    calls: list[Span]
    tools: list[Span]
    parent: str | None


def programs(
    spans: Sequence[Span], name: str, repairs: Repairs, assumptions: Assumptions
) -> list[Program]:
    tree = SpanTree(spans, repairs)
    read_once(tree, repairs)
    found = groups(tree, name)
    ids = {group.id: 0 for group in found}
    lanes = [lane for group in found for lane in _lanes(group, ids)]
    agents = {lane.id: _agent(lane, repairs, assumptions) for lane in lanes}
    built = make_programs(agents, repairs, after_begun=True)
    pairs = zip(built, lanes, strict=True)
    return list(agree_on_prefixes([_with_text(program, lane.calls) for program, lane in pairs]))


def _lanes(group: AgentSpans, ids: dict[str, int]) -> list[_Lane]:
    """Distribute calls over lanes in which they follow each other. A call that overlaps the main
    lane runs in parallel with it."""
    above = group.parent
    while above is not None and not above.calls:
        above = above.parent
    lanes = [_Lane(group.id, [], group.tools, above.id if above else None)]
    for call in group.calls:
        side = lanes[max(1, len(lanes) - MAX_COMPARED) :]
        chosen = next((lane for lane in side if _continues(lane.calls[-1], call)), lanes[0])
        if chosen.calls and not _follows(chosen.calls[-1], call):
            wanted = identifier(f"{group.id}/parallel")
            chosen = _Lane(unique_id(wanted, ids), [], [], group.id)
            lanes.append(chosen)
        chosen.calls.append(call)
    return lanes


def _follows(before: Span, call: Span) -> bool:
    return call.start_s >= before.end_s - TOLERANCE_S or _continues(before, call)


def _continues(before: Span, call: Span) -> bool:
    """Return whether a prompt contains the previous prompt and an answer to it."""
    whole = len(before.prompt)
    return (
        0 < whole < len(call.prompt)
        and call.prompt[whole] == Message("assistant", before.answer)
        and _repeated_messages(before, call) == whole
    )


def _repeated_messages(before: Span, call: Span) -> int:
    """Return the number of leading messages that both prompts share."""
    pairs = zip(before.prompt, call.prompt, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _agent(lane: _Lane, repairs: Repairs, assumptions: Assumptions) -> TimedAgent:
    tools = _tools(lane, repairs)
    calls = [
        _call(span, names, assumptions, repairs)
        for span, names in zip(lane.calls, tools, strict=True)
    ]
    fill_usage(calls, repairs)
    for (before, call), (span, following) in zip(
        pairwise(calls), pairwise(lane.calls), strict=True
    ):
        if span.name == following.name and not _have_text(span, following):
            call.cached = following.usage.cached
        kept = _kept(before, span, following, repairs)
        if kept is None:
            kept = kept_tokens(before, call, repairs, calls[0])
        most = most_kept(before, call)
        call.kept = max(following.kept or 0, min(max(kept, call.cached or 0), most))
    return TimedAgent(lane.id, calls, lane.parent, delay_provenance=lane.calls[0].start_provenance)


def _with_text(program: Program, calls: Sequence[Span]) -> Program:
    """Add what follows from the text of the prompts."""
    first = calls[0]
    system = [m.content for m in takewhile(lambda m: m.role in SYSTEM_ROLES, first.prompt)]
    shortest = min(turn.prompt_tokens for turn in program.turns)
    messages, ends = _conversation(calls)
    return replace(
        program,
        prefix=system_prefix("\n".join(system), _characters(first.prompt), shortest),
        recorded_start_s=first.start_s,
        messages=messages,
        prompt_messages=ends,
    )


def _tools(lane: _Lane, repairs: Repairs) -> list[tuple[str, ...]]:
    """Return the tools of each call: the spans until the next request, or else the tools in the
    answer. If neither is recorded, a later call in the same trace implies that there was one."""
    starts_s = [call.start_s for call in lane.calls]
    found: list[list[str]] = [[] for _ in lane.calls]
    for tool in lane.tools:
        if (i := bisect_right(starts_s, tool.start_s) - 1) >= 0:
            found[i].append(tool.name or "tool")
    tools = [tuple(names) or call.called for names, call in zip(found, lane.calls, strict=True)]
    for i, (call, following) in enumerate(pairwise(lane.calls)):
        if not tools[i] and not call.answer and call.trace == following.trace:
            repairs.add("a call with neither tools nor answer, not the last: assumed a tool call")
            tools[i] = ("tool",)
    return tools


def _call(span: Span, tools: tuple[str, ...], assumptions: Assumptions, repairs: Repairs) -> Call:
    usage, texts = span.usage, [message.content for message in span.prompt]
    prompt, output = usage.prompt or 0, usage.output or 0
    if not prompt and texts:
        prompt = assumptions.tokens.length(texts)
        repairs.add(f"a prompt without token counts: {assumptions.tokens.basis}")
    elif prompt and texts and not _is_partial(span):
        assumptions.tokens.observe(sum(map(len, texts)), prompt)
    if not output and span.answer:
        output = assumptions.tokens.length([span.answer])
        repairs.add(f"an answer without token counts: {assumptions.tokens.basis}")
    return Call(
        prompt,
        output,
        span.start_s,
        span.end_s,
        drops_output=usage.reasoning > 0,
        tools=tools,
        gap_provenance=span.gap_provenance,
    )


def _kept(previous: Call, before: Span, span: Span, repairs: Repairs) -> int | None:
    """Return the kept tokens of a prompt that does not extend the previous one; None if it does."""
    if span.kept is not None:
        return span.kept
    if not _have_text(before, span):
        if before.name != span.name:
            repairs.add("a call of another agent in the same session: nothing counts as kept")
            return 0
        repairs.add("a prompt without its full text: assumed to repeat the previous one, inferred")
        return None
    repeated = _repeated_messages(before, span)
    if repeated == len(before.prompt):
        return None
    repairs.add("a prompt that does not repeat all messages of the previous one")
    characters = _characters(before.prompt[:repeated])
    if repeated < len(span.prompt):
        contents = zip(before.prompt[repeated].content, span.prompt[repeated].content, strict=False)
        characters += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], contents))
    return int(previous.prompt * characters / max(1, _characters(before.prompt)))


def _have_text(before: Span, span: Span) -> bool:
    """Return whether the full text of both prompts is recorded."""
    return bool(before.prompt and span.prompt) and not _is_partial(span)


def _is_partial(span: Span) -> bool:
    """Return whether only the new messages of a prompt are recorded."""
    first = next((m.role for m in span.prompt if m.role not in SYSTEM_ROLES), "")
    return first == "tool" and bool(span.usage.prompt)


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _conversation(calls: Sequence[Span]) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """Return the messages, and the length of each prompt; none if a prompt does not extend the
    previous one."""
    if not calls[0].prompt or any(
        _repeated_messages(before, call) < len(before.prompt) for before, call in pairwise(calls)
    ):
        return (), ()
    messages = [*calls[-1].prompt, Message("assistant", calls[-1].answer)]
    roles = {"developer": "system", "system": "system", "assistant": "assistant"}
    converted = tuple(Message(roles.get(m.role, "user"), m.content) for m in messages)
    return converted, tuple(len(call.prompt) for call in calls)
