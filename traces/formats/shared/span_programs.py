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
from itertools import accumulate, pairwise, takewhile

from servers.basics.text import identifier
from traces.assumptions import Assumptions
from traces.formats.shared.calls import (
    TrajectoryCall,
    fill_usage,
    make_turn,
    shortest_prefixes,
    system_prefix,
    unique_id,
)
from traces.formats.shared.span_counts import read_once
from traces.formats.shared.span_groups import AgentSpans, groups
from traces.formats.shared.spans import Span, SpanTree
from traces.lenient import Repairs
from traces.program import Fork, Message, Program, Turn

SKEW_S = 0.1
"""A request that starts at most this long before the end of the previous response follows it, since
the clocks of two processes differ."""
MAX_COMPARED = 100
"""Maximum number of parallel calls of an agent that a further call may continue."""
SYSTEM_ROLES = ("system", "developer")


@dataclass(slots=True)
class _Lane:
    """Calls that follow each other."""

    id: str
    calls: list[Span]
    tools: list[Span]
    parent: _Lane | None
    fork: Fork | None = None


def programs(
    spans: Sequence[Span], name: str, repairs: Repairs, assumptions: Assumptions
) -> list[Program]:
    tree = SpanTree(spans, repairs)
    read_once(tree, repairs)
    lanes: list[_Lane] = []
    main: dict[str, _Lane] = {}
    found = groups(tree, name)
    ids = {group.id: 0 for group in found}
    for group in found:
        above = group.parent
        while above is not None and above.id not in main:
            above = above.parent
        added = _lanes(group, main[above.id] if above is not None else None, ids)
        main[group.id] = added[0]
        lanes += added
    joined_s: dict[tuple[str, int], float] = {}
    ends_s: dict[str, list[float]] = {}
    for lane in lanes:
        _place(lane, joined_s, ends_s, repairs)
    built = [_program(lane, joined_s, repairs, assumptions) for lane in lanes]
    return shortest_prefixes(built)


def _lanes(group: AgentSpans, parent: _Lane | None, ids: dict[str, int]) -> list[_Lane]:
    """Distribute calls over lanes in which they follow each other. A call that overlaps the main
    lane runs in parallel with it."""
    lanes = [_Lane(group.id, [], group.tools, parent)]
    for call in group.calls:
        side = lanes[max(1, len(lanes) - MAX_COMPARED) :]
        chosen = next((lane for lane in side if _continues(lane.calls[-1], call)), lanes[0])
        if chosen.calls and not _follows(chosen.calls[-1], call):
            wanted = identifier(f"{group.id}/parallel")
            chosen = _Lane(unique_id(wanted, ids), [], [], lanes[0])
            lanes.append(chosen)
        chosen.calls.append(call)
    return lanes


def _follows(before: Span, call: Span) -> bool:
    return call.start_s >= before.end_s - SKEW_S or _continues(before, call)


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


def _place(
    lane: _Lane,
    joined_s: dict[tuple[str, int], float],
    ends_s: dict[str, list[float]],
    repairs: Repairs,
) -> None:
    """Set the turns of the parent after which a lane starts, and which wait for it."""
    if lane.parent is None:
        return
    calls, start_s, end_s = lane.parent.calls, lane.calls[0].start_s, lane.calls[-1].end_s
    if lane.parent.id not in ends_s:
        # The earliest end of each call and all later ones; these ascend.
        earliest = accumulate((call.end_s for call in reversed(calls)), min)
        ends_s[lane.parent.id] = list(earliest)[::-1]
    after = bisect_right(ends_s[lane.parent.id], start_s + SKEW_S) - 1
    if after < 0:
        repairs.add("a sub-agent or parallel call before its agent's first answer: separate")
        return
    waiting = after + 1
    if waiting < len(calls) and calls[waiting].start_s <= start_s:
        waiting += 1  # a parallel call: the request that is under way cannot wait for it
    joined = None
    if waiting < len(calls):
        if end_s <= calls[waiting].start_s + SKEW_S:
            joined = waiting
            key = (lane.parent.id, waiting)
            joined_s[key] = max(joined_s.get(key, 0.0), end_s)
        else:
            repairs.add(f"{lane.id} runs in parallel with its parent, which does not wait for it")
    delay_s = round(max(0.0, start_s - calls[after].end_s), 3)
    lane.fork = Fork(lane.parent.id, after, delay_s, joined, lane.calls[0].start_provenance)


def _program(
    lane: _Lane,
    joined_s: dict[tuple[str, int], float],
    repairs: Repairs,
    assumptions: Assumptions,
) -> Program:
    tools = _tools(lane, repairs)
    calls = [
        _call(span, names, assumptions, repairs)
        for span, names in zip(lane.calls, tools, strict=True)
    ]
    fill_usage(calls, 0, repairs)
    turns: list[Turn] = []
    for i, span in enumerate(lane.calls):
        end_s = max(span.end_s, joined_s.get((lane.id, i + 1), 0.0))
        gap_s = _gap_s(lane.calls, i, end_s, repairs)
        before = lane.calls[i - 1]
        kept = _kept(calls[i - 1], before, span, repairs) if i else None
        turn = make_turn(calls, i, (gap_s, span.gap_provenance), repairs, kept)
        if i:
            guessed = before.name == span.name and not _have_text(before, span)
            turn = _within(turn, turns[-1], span.usage.cached if guessed else 0)
        turns.append(turn)
    first = lane.calls[0]
    system = [m.content for m in takewhile(lambda m: m.role in SYSTEM_ROLES, first.prompt)]
    shortest = min(turn.prompt_tokens for turn in turns)
    messages, ends = _conversation(lane.calls)
    return Program(
        lane.id,
        tuple(turns),
        system_prefix("\n".join(system), _characters(first.prompt), shortest),
        lane.fork,
        first.start_s,
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


def _call(
    span: Span, tools: tuple[str, ...], assumptions: Assumptions, repairs: Repairs
) -> TrajectoryCall:
    usage, texts = span.usage, [message.content for message in span.prompt]
    prompt, output = usage.prompt, usage.output
    if not prompt and texts:
        prompt = assumptions.tokens.length(texts)
        repairs.add(f"a prompt without token counts: {assumptions.tokens.basis}")
    elif prompt and texts and not _is_partial(span):
        assumptions.tokens.observe(sum(map(len, texts)), prompt)
    if not output and span.answer:
        output = assumptions.tokens.length([span.answer])
        repairs.add(f"an answer without token counts: {assumptions.tokens.basis}")
    return TrajectoryCall(prompt, output, usage.reasoning, span.start_s, span.end_s, tools=tools)


def _gap_s(calls: Sequence[Span], i: int, end_s: float, repairs: Repairs) -> float:
    if i + 1 == len(calls):
        return 0.0
    gap_s = calls[i + 1].start_s - end_s
    if gap_s < 0:
        repairs.add("a request that starts before the previous response ended: gap set to 0")
    return max(0.0, gap_s)


def _kept(previous: TrajectoryCall, before: Span, span: Span, repairs: Repairs) -> int | None:
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
    return int((previous.prompt or 1) * characters / max(1, _characters(before.prompt)))


def _have_text(before: Span, span: Span) -> bool:
    """Return whether the full text of both prompts is recorded."""
    return bool(before.prompt and span.prompt) and not _is_partial(span)


def _is_partial(span: Span) -> bool:
    """Return whether only the new messages of a prompt are recorded."""
    first = next((m.role for m in span.prompt if m.role not in SYSTEM_ROLES), "")
    return first == "tool" and bool(span.usage.prompt)


def _within(turn: Turn, before: Turn, cached: int) -> Turn:
    """Return a turn that keeps at least the recorded cache hits and at most what is possible."""
    kept = min(max(turn.kept_tokens, cached), turn.prompt_tokens - 1, before.context_tokens)
    return replace(turn, kept_tokens=kept)


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
