"""LangSmith runs.

In: runs as the API and the SDK return them, as a list, in `runs`, or one per line, each with its
`child_runs` or beside them. Out: see `span_programs`. A run of type `llm` is a model call; the
counts of other runs are sums. `session_id` is the project, and a thread is in the metadata. Written
after the public schema ("Run data format" and "Messages view trace format" in LangSmith's
documentation, `langsmith.schemas.Run`), without files of real agents.
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
from traces.lenient import Repairs, first_text, items, mapping, starts
from traces.program import Message, Program

ABOUT = About(
    name="langsmith",
    order=13,
    keys=(("run_type", "start_time", "trace_id"), ("run_type", "start_time", "parent_run_id")),
    holds="runs of LangSmith",
    tokens="recorded, else inferred",
    tool_times=MEASURED,
    sub_agents=True,
    accuracy=f"known from the public schema only; {BY_TEXT}",
    without=COUNT,
)

KINDS = {"llm": SpanKind.MODEL, "tool": SpanKind.TOOL}
THREADS = ("thread_id", "session_id", "conversation_id")
"""Keys of metadata that name the thread of a run."""
PROMPTS = ("messages", "input", "prompt")
ROLES = {"human": "user", "ai": "assistant"}
NOT_SENT = ("role", "additional_kwargs", "response_metadata", "usage_metadata", "artifact")
"""Fields of a message that are no part of its text."""
RUNS_TO_CHECK = 50
MAX_DEPTH = 50
"""Maximum depth of a run in others."""


def sniff(first_bytes: bytes) -> bool:
    return any(
        "start_time" in run and not {"trace_id", "parent_run_id"}.isdisjoint(run)
        for document in starts(first_bytes)
        for run in islice(_runs(document), RUNS_TO_CHECK)
    )


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    runs = (run for document in documents(data, repairs) for run in _runs(document))
    spans = [span for run in runs if (span := _span(run, repairs)) is not None]
    if not spans:
        raise TraceRejected("no run with a start and an end")
    return programs(spans, name, repairs, assumptions)


def _runs(value: object, depth: int = 0) -> Iterator[JsonObject]:
    for run in map(mapping, value if isinstance(value, list) else [value]):
        if "run_type" in run:
            yield run
        if depth < MAX_DEPTH:
            yield from _runs(items(run.get("child_runs")) + items(run.get("runs")), depth + 1)


def _span(run: JsonObject, repairs: Repairs) -> Span | None:
    kind = KINDS.get(text(run.get("run_type")), SpanKind.OTHER)
    start_s, end_s = moment(run.get("start_time")), moment(run.get("end_time"))
    if start_s is None or end_s is None:
        if kind is not SpanKind.OTHER:
            repairs.add("a run without its start or its end: left out")
        return None
    if end_s < start_s:
        repairs.add("a run that ends before it starts: its duration set to 0")
    is_model, extra = kind is SpanKind.MODEL, mapping(from_text(run.get("extra")))
    metadata, outputs = mapping(extra.get("metadata")), mapping(from_text(run.get("outputs")))
    answer = _answer(outputs) if is_model else {}
    return Span(
        text(run.get("id")),
        text(run.get("parent_run_id")),
        text(run.get("trace_id")),
        kind,
        text(metadata.get("langgraph_node") if is_model else run.get("name")),
        start_s,
        max(start_s, end_s),
        session=text(run.get("thread_id")) or first_text(metadata, *THREADS),
        usage=_usage(run, outputs, answer) if is_model else SpanUsage(),
        prompt=_prompt(mapping(from_text(run.get("inputs"))), extra) if is_model else (),
        answer=flat_text(_message(answer)),
        called=called_tools(_message(answer)),
        provider=first_text(metadata, "ls_provider", "ls_model_name"),
        failed=bool(run.get("error")),
    )


def _prompt(inputs: JsonObject, extra: JsonObject) -> tuple[Message, ...]:
    listed = next(filter(None, (items(inputs.get(name)) for name in PROMPTS)), [])
    listed = listed[0] if listed and isinstance(listed[0], list) else listed  # LangChain's batch
    tools = {"tools": mapping(extra.get("invocation_params")).get("tools"), **inputs}
    return tuple(messages({**tools, "messages": [_message(mapping(raw)) for raw in listed]}))


def _answer(outputs: JsonObject) -> JsonObject:
    """Return the message in the outputs of a model call: of LangChain, OpenAI or Anthropic."""
    first: object = outputs.get("generations") or outputs.get("choices") or outputs.get("messages")
    while isinstance(first, list):
        first = first[0] if first else None
    generation = mapping(first) or outputs
    output = {"content": generation["output"]} if "output" in generation else generation
    return mapping(generation.get("message")) or output


def _message(raw: JsonObject) -> JsonObject:
    """Return a message with its role, without what the model neither reads nor writes. Those of
    LangChain may have their fields in `kwargs`, and then their class in `id`."""
    fields = mapping(raw.get("kwargs")) or raw
    kind = text(fields.get("type")) or "".join(map(text, items(raw.get("id"))[-1:]))
    kind = kind.lower().removesuffix("chunk").removesuffix("message")
    role = text(fields.get("role")) or ROLES.get(kind, kind)
    return {"role": role, **{k: v for k, v in fields.items() if k not in NOT_SENT}}


def _usage(run: JsonObject, outputs: JsonObject, answer: JsonObject) -> SpanUsage:
    answered = mapping(answer.get("kwargs")) or answer
    for counts in (run, *(mapping(each.get("usage_metadata")) for each in (outputs, answered))):
        prompt = first_count(counts, "prompt_tokens", "input_tokens")
        output = first_count(counts, "completion_tokens", "output_tokens")
        if prompt or output:
            read = counts.get("prompt_token_details") or counts.get("input_token_details")
            written = counts.get("completion_token_details") or counts.get("output_token_details")
            return SpanUsage(
                prompt,
                output,
                first_count(counts, "total_tokens"),
                first_count(mapping(read), "cache_read") or 0,
                first_count(mapping(read), "cache_creation") or 0,
                first_count(mapping(written), "reasoning") or 0,
            )
    return SpanUsage()
