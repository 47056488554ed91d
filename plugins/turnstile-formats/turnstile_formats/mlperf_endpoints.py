"""Agentic datasets of MLPerf endpoints, with one message per line.

In: `{conversation_id, turn, role, content, system, tools, reasoning_content, tool_calls,
tool_results, delay_seconds}` per line, where `system` and `tools` are in a conversation's first
line and `delay_seconds` is the time of the tools. Out: a program per conversation with a turn per
assistant message, whose prompt is everything before it. Tokens are estimated from the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from servers.tool_names import call_names
from traces.assumptions import Assumptions, Gap
from traces.formats.about import BY_TEXT, COUNT, DRAW, About
from traces.formats.shared.calls import Call
from traces.formats.shared.chat_messages import as_json, called_tools, flat_text, from_text
from traces.formats.shared.rows import line_documents
from traces.formats.shared.transcript import Transcript
from traces.lenient import Repairs, items, mapping, seconds, starts, tokens
from traces.merge import agree_on_prefixes
from traces.program import Program, Provenance

ABOUT = About(
    name="mlperf-endpoints",
    holds="messages of MLPerf's agentic sets",
    tokens="inferred",
    tool_times="measured, else no",
    starts=False,
    accuracy=BY_TEXT,
    without=f"{COUNT}; without `delay_seconds` {DRAW}",
    title="MLPerf endpoints",
    rules=(
        "A turn is an assistant message. Reasoning is part of the output and of later prompts. "
        "The gap is the sum of `delay_seconds` before the next request"
    ),
)

FIELDS = {"conversation_id", "turn", "role"}
SAID = ("content", "reasoning_content", "tool_calls", "tool_results")
"""Fields of a message that are counted as tokens."""


def sniff(first_bytes: bytes) -> bool:
    return any(mapping(start).keys() >= FIELDS for start in starts(first_bytes))


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    conversations: dict[str, list[JsonObject]] = {}
    for row in filter(None, map(mapping, line_documents(data, repairs))):
        id = identifier(row.get("conversation_id")) or name
        conversations.setdefault(id, []).append(row)
    programs = []
    for id, rows in conversations.items():
        rows.sort(key=lambda row: tokens(row.get("turn")) or 0)
        if any(row.get("role") == "assistant" for row in rows):
            programs.append(_program(id, rows, repairs, assumptions))
        else:
            repairs.add(f"{id} has no assistant message: left out")
    if not programs:
        raise TraceRejected("no assistant message")
    return list(agree_on_prefixes(programs))


def _program(
    id: str, rows: Sequence[JsonObject], repairs: Repairs, assumptions: Assumptions
) -> Program:
    parts = as_json(rows[0].get("system")), as_json(rows[0].get("tools"))
    system = "\n".join(filter(None, parts))
    counter = assumptions.tokens
    context = counter.length([system]) if system else 0
    read, gaps = Transcript(), list[Gap | None]()
    shown = text(rows[0].get("system"))
    read.system = system
    read.say("system", shown, further=len(system) - len(shown))
    for row in rows:
        said = flat_text([row.get(field) for field in SAID])
        length = counter.length([said]) if said else 0
        call = None
        if row.get("role") == "assistant":
            call = Call(max(context, 1), max(length, 1), tools=_tools(row))
            gaps.append(None)
        elif gaps:
            gaps[-1] = _longer(gaps[-1], seconds(row.get("delay_seconds")))
        read.say("assistant" if call else "user", said, call)
        context += length
    repairs.add(f"a conversation without token counts: {counter.basis}")
    tools = [call.tools for call in read.calls]
    return read.program(id, assumptions.complete_gaps(id, tools, gaps, repairs), repairs)


def _longer(gap: Gap | None, delay_s: float | None) -> Gap | None:
    """Return a gap extended by the delay of a further message before the next request."""
    if delay_s is None:
        return gap
    return (gap[0] if gap else 0.0) + delay_s, Provenance.MEASURED


def _tools(row: JsonObject) -> tuple[str, ...]:
    """Return the names of the called tools, or the commands that a shell runs."""
    names: list[str] = []
    for call in items(row.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        command = text(mapping(from_text(function.get("arguments"))).get("command"))
        for name in called_tools([call]):
            names += call_names(name, command) if command else (name,)
    return tuple(names)
