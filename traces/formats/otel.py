"""OpenTelemetry spans of agents.

In: OTLP JSON (`resourceSpans`, as one object, a list, or a line each), or spans as a list, one per
line or in `spans`: with snake-case fields (inference-perf), `context` (Phoenix) or `spanContext`
(Vercel AI SDK); or Jaeger's `data`. `otel_attributes` reads the attributes of the GenAI
conventions, OpenInference, OpenLLMetry and the Vercel AI SDK. Out: see `span_programs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import text
from traces.assumptions import Assumptions
from traces.formats import otel_attributes as read
from traces.formats.about import BY_TEXT, COUNT, MEASURED, About
from traces.formats.shared.moments import moment
from traces.formats.shared.rows import documents
from traces.formats.shared.span_programs import programs
from traces.formats.shared.spans import Span, SpanKind, SpanUsage
from traces.lenient import Repairs, first_text, items, mapping, number, starts, tokens
from traces.program import Program

ABOUT = About(
    name="otel",
    order=11,
    keys=(
        ("resourceSpans",),
        ("trace_id", "span_id", "attributes"),
        ("trace_id", "spans"),
    ),
    holds="OpenTelemetry spans of agents",
    tokens="recorded, else inferred",
    tool_times=MEASURED,
    sub_agents=True,
    accuracy=BY_TEXT,
    without=COUNT,
)

SPANS_TO_CHECK = 50
"""One of this many first spans of a file must have a known attribute."""
CONTAINERS = ("resourceSpans", "scopeSpans", "instrumentationLibrarySpans", "spans", "data")
MAX_DEPTH = 8
"""Maximum depth of a span in containers and lists."""


def sniff(first_bytes: bytes) -> bool:
    return any(map(_has_spans, starts(first_bytes)))


def _has_spans(document: object) -> bool:
    if "resourceSpans" in mapping(document) or read.is_known(mapping(document)):
        return True
    spans = islice(raw_spans(document), SPANS_TO_CHECK)
    return any(any(_ids(raw)) and read.is_known(read.attributes_of(raw)) for raw, _ in spans)


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    spans = [
        span
        for document in documents(data, repairs)
        for raw, session in raw_spans(document)
        if (span := _span(raw, session, repairs)) is not None
    ]
    if not spans:
        raise TraceRejected("no span with a start and an end")
    return programs(spans, name, repairs, assumptions)


def raw_spans(value: object, session: str = "", depth: int = 0) -> Iterator[tuple[JsonObject, str]]:
    """Yield the spans in a document, each with the session of its container."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        for element in value:
            yield from raw_spans(element, session, depth + 1)
    elif isinstance(value, dict):
        inner = [values for name in CONTAINERS if (values := value.get(name)) is not None]
        if not inner:
            yield value, session
        for values in inner:
            yield from raw_spans(values, text(value.get("session_id")) or session, depth + 1)


def _ids(raw: JsonObject) -> tuple[str, str, str]:
    """Return the ids of a span, of its parent, and of its trace."""
    context = {**raw, **mapping(raw.get("context", raw.get("spanContext")))}
    parent = first_text(mapping(raw.get("parentSpanContext")), "spanId")
    parent = parent or first_text(raw, "parent_span_id", "parentSpanId", "parent_id", "parentId")
    for reference in map(mapping, items(raw.get("references"))):
        if reference.get("refType") == "CHILD_OF":
            parent = parent or first_text(reference, "spanID")
    span = first_text(context, "span_id", "spanId", "spanID")
    return span, parent, first_text(context, "trace_id", "traceId", "traceID")


def _span(raw: JsonObject, session: str, repairs: Repairs) -> Span | None:
    start = raw.get("startTimeUnixNano", raw.get("start_time", raw.get("startTime")))
    end = raw.get("endTimeUnixNano", raw.get("end_time", raw.get("endTime")))
    start_s, end_s = moment(start), moment(end)
    duration = number(raw.get("duration"))
    if end_s is None and start_s is not None and duration is not None:
        end_s = start_s + max(0.0, duration) / 1e6  # Jaeger, in microseconds
    if start_s is None or end_s is None:
        repairs.add("a span without its start or its end: left out")
        return None
    if end_s < start_s:
        repairs.add("a span that ends before it starts: its duration set to 0")
    attributes = read.attributes_of(raw)
    events = raw.get("events", raw.get("span_events"))
    span_id, parent, trace = _ids(raw)
    name = first_text(raw, "name", "operationName")
    kind = read.kind(attributes, name)
    status = mapping(raw.get("status"))
    code = status.get("code", status.get("status_code", raw.get("status_code")))
    is_model = kind is SpanKind.MODEL
    return Span(
        span_id,
        parent,
        trace,
        kind,
        read.name_of(attributes, kind, name),
        start_s,
        max(start_s, end_s),
        session=read.session(attributes) or session,
        usage=read.usage(attributes) if is_model else SpanUsage(),
        prompt=read.prompt(attributes, events) if is_model else (),
        answer=read.answer(attributes, events) if is_model else "",
        called=read.called(attributes) if is_model else (),
        provider=read.provider(attributes),
        answer_id=read.answer_id(attributes, kind),
        failed=code in (2, "ERROR", "STATUS_CODE_ERROR"),
        kept=tokens(attributes.get(read.KEPT_TOKENS)),
        gap_provenance=read.provenance(attributes, read.GAP_PROVENANCE),
        start_provenance=read.provenance(attributes, read.START_PROVENANCE),
    )
