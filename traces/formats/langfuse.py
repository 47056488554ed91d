"""Langfuse exports.

In: `{trace, observations}` from the user interface, a trace from the API with its `observations`,
or observations alone; as one object, a list, or one per line. Out: see `span_programs`. A
generation is a model call. Durations are differences of times, because `latency` is in seconds in
some exports and in milliseconds in others. Most exports have every observation twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import text
from traces.assumptions import Assumptions
from traces.formats.about import BY_TEXT, COUNT, MEASURED, About
from traces.formats.shared.calls import first_count
from traces.formats.shared.chat_messages import called_tools, flat_text, from_text, messages
from traces.formats.shared.moments import moment
from traces.formats.shared.rows import documents
from traces.formats.shared.span_programs import programs
from traces.formats.shared.spans import Span, SpanKind, SpanUsage
from traces.lenient import Repairs, items, mapping, starts, tokens
from traces.program import Program

ABOUT = About(
    name="langfuse",
    order=12,
    keys=(("trace", "observations"),),
    holds="exports of Langfuse",
    tokens="recorded, else inferred",
    tool_times=MEASURED,
    sub_agents=True,
    accuracy=BY_TEXT,
    without=COUNT,
)

KINDS = {"GENERATION": SpanKind.MODEL, "TOOL": SpanKind.TOOL, "AGENT": SpanKind.AGENT}
CACHED = (
    *("input_cached_tokens", "input_cache_read", "cache_read_input_tokens"),
    *("prompt_details.cache_read", "input_cached"),
)
CACHE_WRITES = ("input_cache_creation", "cache_creation_input_tokens", "input_cache_write")
REASONING = ("output_reasoning_tokens", "output_reasoning", "completion_details.reasoning")
OBSERVATIONS_TO_CHECK = 50
Observation = tuple[JsonObject, str, str]
"""The observation, its trace and its session."""


def sniff(first_bytes: bytes) -> bool:
    return any(
        "startTime" in observation and "type" in observation
        for document in starts(first_bytes)
        for observation, _, _ in islice(_observations(document), OBSERVATIONS_TO_CHECK)
    )


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    found = (o for document in documents(data, repairs) for o in _observations(document))
    spans = [span for o in found if (span := _span(o, repairs)) is not None]
    if not spans:
        raise TraceRejected("no observation with a start and an end")
    return programs(spans, name, repairs, assumptions)


def _observations(document: object) -> Iterator[Observation]:
    for element in document if isinstance(document, list) else [document]:
        fields = mapping(element)
        trace = mapping(fields.get("trace")) or fields
        observations = items(fields.get("observations")) or items(trace.get("observations"))
        if observations:
            id_, session = text(trace.get("id")), text(trace.get("sessionId"))
            for observation in observations:
                yield mapping(observation), id_, session
        elif "traceId" in fields:
            yield fields, text(fields.get("traceId")), text(fields.get("sessionId"))


def _span(found: Observation, repairs: Repairs) -> Span | None:
    observation, trace, session = found
    kind = KINDS.get(text(observation.get("type")).upper(), SpanKind.OTHER)
    start_s, end_s = moment(observation.get("startTime")), moment(observation.get("endTime"))
    if start_s is None or end_s is None:
        if kind is not SpanKind.OTHER:
            repairs.add("an observation without its start or its end: left out")
        return None
    if end_s < start_s:
        repairs.add("an observation that ends before it starts: its duration set to 0")
    is_model = kind is SpanKind.MODEL
    output = from_text(observation.get("output"))
    return Span(
        text(observation.get("id")),
        text(observation.get("parentObservationId")),
        text(observation.get("traceId")) or trace,
        kind,
        "" if is_model else text(observation.get("name")).removeprefix("execute_tool "),
        start_s,
        max(start_s, end_s),
        session=session,
        usage=_usage(observation) if is_model else SpanUsage(),
        prompt=tuple(messages(observation.get("input"))) if is_model else (),
        answer=flat_text(output) if is_model else "",
        called=called_tools(output) if is_model else (),
        provider=text(observation.get("model")),
        failed=observation.get("level") == "ERROR",
    )


def _usage(observation: JsonObject) -> SpanUsage:
    """Return the token counts. The parts of `output` are separate from it."""
    details = mapping(observation.get("usageDetails")) or mapping(observation.get("usage"))
    reasoning = first_count(details, *REASONING) or 0
    output = first_count(details, "output", "completion_tokens")
    prompt = first_count(details, "input", "prompt_tokens")
    total = tokens(details.get("total"))
    if output is not None and prompt is not None and total == prompt + output + reasoning:
        output += reasoning
    return SpanUsage(
        prompt,
        output,
        total,
        first_count(details, *CACHED) or 0,
        first_count(details, *CACHE_WRITES) or 0,
        reasoning,
    )
