"""Sessions of GitHub Copilot's coding agents (Azure public data set of 2026), without content.

In: sessions as JSON Lines or as one document, `{session_id, turns[{llm_calls[{message_id,
timestamp, duration_ms, initiator_type, model, result, tokens, message_metadata}], tool_batches[{
request_id, duration_ms, function_calls[{name, duration_ms}]}]}]}`. Out: a program per session. The
schema does not define a call's `timestamp`; it is assumed to be the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.formats.about import LENGTHS, About
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import clock_s, in_seconds, lengths, rows
from traces.formats.shared.timed_calls import TimedAgent, estimate_ends, programs_of
from traces.lenient import Repairs, items, mapping, starts, tokens
from traces.program import Program, Provenance, SharedPrefix

ABOUT = About(
    name="azure-copilot",
    session_key="",
    holds="sessions of GitHub Copilot's agents",
    tool_times="measured, else inferred",
    accuracy=f"{LENGTHS} and cached tokens; written from the schema",
    title="GitHub Copilot (`GitHubCopilotCodingAgents`)",
    rules=(
        "The gap after a tool batch is the sum of `duration_ms`, otherwise **measured** if "
        "`timestamp` is the start. Leading `System` segments of equal length are assumed to be "
        "shared"
    ),
)


def sniff(first_bytes: bytes) -> bool:
    for start in starts(first_bytes):
        session = mapping(items(start)[0] if items(start) else start)
        if any("llm_calls" in mapping(turn) for turn in items(session.get("turns"))[:1]):
            return True
    return False


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    programs = [
        program
        for number, session in enumerate(_sessions(data, repairs))
        for program in session_programs(session, f"{name}-{number}", repairs)
    ]
    if not programs:
        raise TraceRejected("no LLM call with prompt tokens in any session")
    return _unique(programs, repairs)


def _sessions(data: bytes, repairs: Repairs) -> Iterator[JsonObject]:
    """Yield the sessions of a document that may span several lines, or of JSON Lines."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        yield from rows(data, repairs)
        return
    for session in document if isinstance(document, list) else [document]:
        yield mapping(session)


def _unique(programs: Sequence[Program], repairs: Repairs) -> list[Program]:
    found: dict[str, Program] = {}
    for program in programs:
        if program.id in found:
            repairs.add("a session with an id that was used before: left out")
        else:
            found[program.id] = program
    return list(found.values())


def session_programs(session: JsonObject, name: str, repairs: Repairs) -> list[Program]:
    """Return the programs of a session and of calls that overlap others; [] without calls."""
    id = identifier(session.get("session_id")) or name
    calls: list[Call] = []
    prefix: SharedPrefix | None = None
    for turn in items(session.get("turns")):
        batches = _batches(mapping(turn))
        of_turn: list[Call] = []
        for entry in map(mapping, items(mapping(turn).get("llm_calls"))):
            call = _call(entry, batches.get(text(entry.get("message_id")), []), repairs)
            if call is not None:
                prefix = prefix or _system_prompt(entry, call)
                of_turn.append(call)
        if of_turn and of_turn[-1].tools:
            # The next turn begins with a user message, so the time before it is not a tool's.
            of_turn[-1].tools, of_turn[-1].gap = (), None
            repairs.add("tools after the last call of a turn: counted as a part of the pause")
        calls += of_turn
    if not calls:
        repairs.add("a session without a usable LLM call: left out")
        return []
    estimate_ends(calls, repairs)
    shortest = min(call.prompt for call in calls)
    return programs_of(
        [TimedAgent(id, calls, prefix=prefix if prefix and prefix.tokens <= shortest else None)],
        repairs,
    )[0]


def _batches(turn: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the tool batches of a turn by the call that requested them."""
    by_call: dict[str, list[JsonObject]] = {}
    for batch in map(mapping, items(turn.get("tool_batches"))):
        by_call.setdefault(text(batch.get("request_id")), []).append(batch)
    return by_call


def _call(entry: JsonObject, batches: Sequence[JsonObject], repairs: Repairs) -> Call | None:
    counts = mapping(entry.get("tokens"))
    found = lengths(counts.get("prompt"), counts.get("completion"), repairs)
    if found is None:
        return None
    start_s, duration_s = clock_s(entry.get("timestamp")), in_seconds(entry.get("duration_ms"), 1e3)
    functions = [mapping(f) for batch in batches for f in items(batch.get("function_calls"))]
    return Call(
        *found,
        start_s,
        start_s + duration_s if start_s is not None and duration_s is not None else None,
        cached=tokens(counts.get("cached")),
        tools=tuple(identifier(function.get("name")) or "tool" for function in functions),
        gap=_tool_time(batches, repairs) if batches else None,
    )


def _tool_time(batches: Sequence[JsonObject], repairs: Repairs) -> tuple[float, Provenance] | None:
    """Return the recorded duration of a call's batches, which run one after the other. If it is
    missing, the functions of a batch are assumed to run in parallel."""
    total_s = 0.0
    provenance = Provenance.MEASURED
    for batch in batches:
        duration_s = in_seconds(batch.get("duration_ms"), 1e3)
        if duration_s is None:
            functions = map(mapping, items(batch.get("function_calls")))
            durations = [in_seconds(function.get("duration_ms"), 1e3) for function in functions]
            known_s = [duration for duration in durations if duration is not None]
            if not known_s:
                return None
            repairs.add("a tool batch without duration: its longest function's is used")
            duration_s, provenance = max(known_s), Provenance.INFERRED
        total_s += duration_s
    return total_s, provenance


def _system_prompt(entry: JsonObject, call: Call) -> SharedPrefix | None:
    """Return the leading system segments of a prompt. Prompts of one model are assumed to share
    system segments of the same length."""
    segments = [mapping(segment) for segment in items(entry.get("message_metadata"))]
    segments.sort(key=lambda segment: tokens(segment.get("sequenceId")) or 0)
    length = 0
    for segment in segments:
        if text(segment.get("type")) != "System" and text(segment.get("role")) != "system":
            break
        length += tokens(segment.get("token_len")) or 0
    if not 0 < length < call.prompt:
        return None
    return SharedPrefix(f"system:{identifier(entry.get('model'))}:{length}", length)
