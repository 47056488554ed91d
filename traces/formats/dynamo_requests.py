"""Request traces of NVIDIA Dynamo (`dynamo.request.trace.v1`), with sub-agents and tool spans.

In: an event per line, `{schema, event_type: request_end | tool_end | tool_error, agent_context{
session_id, parent_session_id}, request{request_id, output_tokens, request_received_ms,
total_time_ms, replay{trace_block_size, input_length, input_sequence_hashes}}, tool{tool_class,
started_at_unix_ms, ended_at_unix_ms}}`. Out: a program per session; a session with a parent is its
sub-agent. Requests without a session are programs of one turn.
"""

from __future__ import annotations

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier
from traces.formats.about import MEASURED, SINGLE, About
from traces.formats.mooncake import SINGLE_TURNS, usable_hashes
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import clock_s, first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import TimedAgent, estimate_ends, programs_of, share_hashes
from traces.lenient import Repairs, mapping, tokens
from traces.program import Program

ABOUT = About(
    name="dynamo",
    order=8,
    keys=(("schema", "event_type", "event_time_unix_ms", "request.request_id"),),
    holds="Dynamo's request traces",
    tool_times=MEASURED,
    repeats=MEASURED,
    sub_agents=True,
    without=SINGLE,
    title="Dynamo request traces",
    rules=(
        "Sessions by `agent_context`, times by `request_received_ms` and `total_time_ms`. Tools "
        "are the `tool_class` of tool events. Blocks are `input_sequence_hashes`"
    ),
)

SCHEMA = "dynamo.request.trace.v1"
TOOL_EVENTS = ("tool_end", "tool_error")


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    return row.get("schema") == SCHEMA or {"event_type", "event_time_unix_ms"} <= row.keys()


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    agents: dict[str, TimedAgent] = {}
    tools: dict[str, list[tuple[float, str]]] = {}
    """The tools of each session: the start, in seconds, and the name."""
    blocks: set[int] = set()
    for number, row in enumerate(rows(data, repairs)):
        context = mapping(row.get("agent_context"))
        session = identifier(context.get("session_id"))
        if row.get("event_type") in TOOL_EVENTS:
            tool = mapping(row.get("tool"))
            started_s = clock_s(tool.get("started_at_unix_ms"), 1e3)
            if session and started_s is not None:
                named = (started_s, identifier(tool.get("tool_class")) or "tool")
                tools.setdefault(session, []).append(named)
        elif (call := _call(row, blocks, repairs)) is not None:
            if not session:
                repairs.add(SINGLE_TURNS)
                session = f"{name}-{number}"
            parent = identifier(context.get("parent_session_id")) or None
            agents.setdefault(session, TimedAgent(session, [], parent)).calls.append(call)
    if not agents:
        raise TraceRejected("no request_end event with prompt tokens")
    for id, agent in agents.items():
        estimate_ends(agent.calls, repairs)
        _name_tools(agent, tools.get(id, []))
    if len(blocks) > 1:
        repairs.add("several block sizes in one file: hashes are not used")
        for call in (call for agent in agents.values() for call in agent.calls):
            call.hashes = None
    programs, parts = programs_of(agents.values(), repairs)
    return share_hashes(programs, parts, blocks.pop()) if len(blocks) == 1 else programs


def _call(row: JsonObject, blocks: set[int], repairs: Repairs) -> Call | None:
    if row.get("event_type") != "request_end":
        repairs.add("an event that is neither the end of a request nor of a tool: left out")
        return None
    request = mapping(row.get("request"))
    replay = mapping(request.get("replay"))
    prompt = tokens(replay.get("input_length")) or request.get("input_tokens")
    found = lengths(prompt, request.get("output_tokens"), repairs)
    if found is None:
        return None
    start_s = clock_s(request.get("request_received_ms"), 1e3)
    end_s = clock_s(row.get("event_time_unix_ms"), 1e3)
    total_s = in_seconds(request.get("total_time_ms"), 1e3)
    if start_s is not None and total_s is not None:
        end_s = start_s + total_s
    if start_s is None:
        start_s = end_s
        repairs.add("a request without request_received_ms: starts at its end")
    block = tokens(replay.get("trace_block_size"))
    hashes = usable_hashes(replay.get("input_sequence_hashes")) if block else None
    blocks |= {block} if block else set()
    cached = tokens(request.get("cached_tokens"))
    return Call(*found, start_s, end_s, cached=cached, hashes=hashes)


def _name_tools(agent: TimedAgent, tools: list[tuple[float, str]]) -> None:
    """Assign each tool to the last call that started before it."""
    calls = sorted((c for c in agent.calls if c.start_s is not None), key=lambda c: c.start_s or 0)
    index = 0
    for started_s, name in sorted(tools):
        while index + 1 < len(calls) and (calls[index + 1].start_s or 0.0) <= started_s:
            index += 1
        if calls and (calls[index].start_s or 0.0) <= started_s:
            calls[index].tools += (name,)
