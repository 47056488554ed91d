"""TraceLab's `round_trace.jsonl`: the LLM calls ("rounds") of Claude Code and Codex sessions.

In: a round per line, `{provider, session_id, round_index, input_tokens_total, prefix_tokens,
output_tokens, timing_events[{event_type, timestamp}], tools[{tool_name, emitted_at, result_at}]}`.
Out: a program per session. A round starts at its last input (a message or a tool's result) and ends
at its last output. `prefix_tokens` were read from the provider's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import LENGTHS, PERMISSION, About
from traces.formats.shared.calls import UNASKED_TOOLS, Call
from traces.formats.shared.rows import clock_s, first_row, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import TimedAgent, estimate_ends, programs_of
from traces.lenient import Repairs, items, mapping, tokens
from traces.program import Program, Provenance, SharedPrefix

ABOUT = About(
    name="tracelab",
    session_key="session_id",
    holds="rounds of Claude Code and Codex",
    tool_times=PERMISSION,
    accuracy=f"{LENGTHS} and cached tokens",
    title="TraceLab (`round_trace.jsonl`)",
    rules=(
        "A turn lasts from the last input event to the last output event of a round, its gap to "
        "the last `result_at` of its tools. Output with reasoning is kept only as far as it was "
        "cached"
    ),
)

INPUTS = ("user_message", "tool_result")


def sniff(first_bytes: bytes) -> bool:
    return {"round_index", "input_tokens_total"} <= first_row(first_bytes).keys()


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    agents: dict[str, TimedAgent] = {}
    seen: set[tuple[str, str]] = set()
    shared: dict[str, str] = {}
    for row in rows(data, repairs):
        id = identifier(row.get("session_id")) or name
        round_id = text(row.get("round_id"))
        if round_id and (id, round_id) in seen:
            repairs.add("a round that was recorded before: left out")
        elif call := round_call(row, repairs):
            seen.add((id, round_id))
            agents.setdefault(id, TimedAgent(id, [])).calls.append(call)
            shared.setdefault(id, f"{identifier(row.get('project'))}:{_model(row)}")
    if not agents:
        raise TraceRejected("no round with prompt tokens")
    for agent in agents.values():
        estimate_ends(agent.calls, repairs)
    programs = programs_of(agents.values(), repairs)[0]
    return list(_with_cached_prefix(programs, agents, shared))


def _model(row: JsonObject) -> str:
    return f"{identifier(row.get('provider'))}:{identifier(row.get('model'))}"


def round_call(row: JsonObject, repairs: Repairs) -> Call | None:
    found = lengths(row.get("input_tokens_total"), row.get("output_tokens"), repairs)
    if found is None:
        return None
    times = [
        (text(event.get("event_type")), time_s)
        for event in map(mapping, items(row.get("timing_events")))
        if (time_s := clock_s(event.get("timestamp"))) is not None
    ]
    inputs = [time_s for kind, time_s in times if kind in INPUTS]
    outputs = [time_s for kind, time_s in times if kind not in INPUTS]
    # A message of the user that arrives while the model writes belongs to the next round.
    start_s = max((t for t in inputs if not outputs or t <= min(outputs)), default=None)
    if start_s is None and outputs:
        start_s = min(outputs)
        repairs.add("a round without its input's time: starts with its first output")
    end_s = max(outputs, default=None)
    tools = [mapping(tool) for tool in items(row.get("tools"))]
    return Call(
        *found,
        start_s,
        end_s,
        cached=tokens(row.get("prefix_tokens")),
        drops_output=bool(tokens(row.get("reasoning_output_tokens"))),
        tools=tuple(identifier(tool.get("tool_name")) or "tool" for tool in tools),
        gap=_tool_time(tools, end_s, repairs),
    )


def _tool_time(
    tools: Sequence[JsonObject], end_s: float | None, repairs: Repairs
) -> tuple[float, Provenance] | None:
    """Return the time from the end of the response to the last result of its tools."""
    ends_s = []
    for tool in tools:
        result_s, emitted_s = clock_s(tool.get("result_at")), clock_s(tool.get("emitted_at"))
        duration_s = in_seconds(tool.get("tool_wall_latency_ms"), 1e3)
        if result_s is None and emitted_s is not None and duration_s is not None:
            result_s = emitted_s + duration_s
        if result_s is None:
            repairs.add("a tool call without a result: the gap lasts until the next round")
            return None
        ends_s.append(result_s)
    if not ends_s or end_s is None:
        return None
    unasked = UNASKED_TOOLS.issuperset(str(tool.get("tool_name")) for tool in tools)
    provenance = Provenance.MEASURED if unasked else Provenance.MEASURED_WITH_PERMISSION
    return max(0.0, max(ends_s) - end_s), provenance


def _with_cached_prefix(
    programs: Iterable[Program], agents: Mapping[str, TimedAgent], shared: Mapping[str, str]
) -> Iterable[Program]:
    """Give several sessions of one project and model a common prefix: the fewest tokens that a
    first prompt read from the provider's cache, which another session had written."""
    groups: dict[str, list[TimedAgent]] = {}
    for id, agent in agents.items():
        groups.setdefault(shared[id], []).append(agent)
    lengths: dict[str, int] = {}
    for group, members in groups.items():
        cached = [n for agent in members if (n := agent.calls[0].cached or 0)]
        shortest = min(call.prompt for agent in members for call in agent.calls)
        lengths[group] = min(*cached, shortest) if cached and len(members) > 1 else 0
    for program in programs:
        group = shared.get(program.id, "")
        if length := lengths.get(group, 0):
            program = replace(program, prefix=SharedPrefix(f"cached:{group}", length))
        yield program
