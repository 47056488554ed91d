"""Dialects and containers of OpenTelemetry spans, which give the same program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces import span_samples
from tests.traces.sample import Sample, json_lines
from traces import Program, Provenance
from traces.assumptions import Assumptions
from traces.formats.otel import load_with, sniff
from traces.lenient import Repairs

SAMPLE = Sample({"a.json": span_samples.otlp()}, (Provenance.MEASURED,))


NS = 1_700_000_000_000_000_000
USAGE = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 20}
CHAT = {"gen_ai.operation.name": "chat", **USAGE}


def flat(span_id: str, start_s: float, end_s: float, **fields: Any) -> dict[str, Any]:
    """Return a span of an SDK's JSON, with times in nanoseconds."""
    return {
        "trace_id": "t", "span_id": span_id, "parent_span_id": None, "name": "x",
        "start_time": NS + int(start_s * 1e9), "end_time": NS + int(end_s * 1e9), **fields,
    }  # fmt: skip


def read(document: Any, *more: Any) -> list[Program]:
    data = json_lines(document, *more)
    assert sniff(data)
    return load_with(data, "file", Repairs(), Assumptions())


def lengths(programs: list[Program]) -> list[tuple[int, int, float]]:
    return [(t.prompt_tokens, t.output_tokens, t.tool_gap_s) for p in programs for t in p.turns]


FLAT = [
    flat("1", 0, 2, attributes=CHAT),
    flat("2", 3.5, 5, attributes={**CHAT, "gen_ai.usage.input_tokens": 150}),
]
OTLP = {
    "resourceSpans": [
        {"scopeSpans": [{"spans": [
            {"traceId": "t", "spanId": s["span_id"], "name": "x",
             "startTimeUnixNano": str(s["start_time"]), "endTimeUnixNano": str(s["end_time"]),
             "attributes": [{"key": key, "value": {"stringValue": value}
                             if isinstance(value, str) else {"intValue": str(value)}}
                            for key, value in s["attributes"].items()]}
            for s in FLAT
        ]}]}
    ]
}  # fmt: skip
PHOENIX = [
    {"name": "LLM", "context": {"trace_id": "t", "span_id": s["span_id"]}, "span_kind": "LLM",
     "parent_id": None, "start_time": start, "end_time": end,
     "attributes": {"openinference": {"span": {"kind": "LLM"}},
                    "llm": {"token_count": {"prompt": prompt, "completion": 20}}}}
    for s, start, end, prompt in zip(
        FLAT,
        ("2023-11-14T22:13:20+00:00", "2023-11-14T22:13:23.500000+00:00"),
        ("2023-11-14T22:13:22+00:00", "2023-11-14T22:13:25+00:00"),
        (100, 150),
        strict=True,
    )
]  # fmt: skip
VERCEL = [
    {"name": "ai.generateText.doGenerate", "spanContext": {"traceId": "t", "spanId": s["span_id"]},
     "startTime": start, "endTime": end,
     "attributes": {"ai.operationId": "ai.generateText.doGenerate",
                    "ai.usage.promptTokens": prompt, "ai.usage.completionTokens": 20}}
    for s, start, end, prompt in zip(
        FLAT,
        ([1_700_000_000, 0], [1_700_000_003, 500_000_000]),
        ([1_700_000_002, 0], [1_700_000_005, 0]),
        (100, 150),
        strict=True,
    )
]  # fmt: skip
JAEGER = {
    "data": [{"traceID": "t", "spans": [
        {"traceID": "t", "spanID": s["span_id"], "operationName": "x",
         "references": [{"refType": "CHILD_OF", "traceID": "t", "spanID": "0"}],
         "startTime": s["start_time"] // 1000,
         "duration": (s["end_time"] - s["start_time"]) // 1000,
         "tags": [{"key": key, "value": value} for key, value in s["attributes"].items()]}
        for s in FLAT
    ]}]
}  # fmt: skip


@pytest.mark.parametrize(
    "documents",
    [
        [FLAT], [OTLP], [[OTLP]], [OTLP, {"resourceSpans": []}], FLAT, [{"spans": FLAT}],
        [PHOENIX], [VERCEL], [JAEGER],
    ],
    ids=["list", "OTLP", "OTLP list", "OTLP lines", "lines", "wrapper", "Phoenix", "Vercel",
         "Jaeger"],
)  # fmt: skip
def test_every_container_gives_the_same_program(documents: list[Any]) -> None:
    programs = read(*documents)
    assert lengths(programs) == [(100, 20, 1.5), (150, 20, 0)]
    assert [program.id for program in programs] == ["t"]


def test_a_wrapper_names_the_session() -> None:
    assert [p.id for p in read({"session_id": "mine", "spans": FLAT})] == ["mine"]


def test_older_names_of_attributes_are_read() -> None:
    usage = {"gen_ai.usage.prompt_tokens": 90, "gen_ai.usage.completion_tokens": 9}
    (program,) = read([flat("1", 0, 1, name="chat gpt", attributes=usage)])
    assert lengths([program]) == [(90, 9, 0)]


def test_the_kinds_of_spans_follow_from_either_convention() -> None:
    (program,) = read([
        flat("0", 0, 9, attributes={"openinference.span.kind": "AGENT", **USAGE}),
        flat("1", 0, 2, attributes=CHAT),
        flat("2", 2, 3, attributes={"openinference.span.kind": "TOOL", "tool.name": "grep"}),
        flat("3", 3, 4, attributes={"traceloop.span.kind": "tool", "gen_ai.tool.name": "cat"}),
        flat("4", 4, 5, attributes=CHAT),
        flat("5", 6, 7, attributes={"gen_ai.operation.name": "embeddings", **USAGE}),
    ])  # fmt: skip
    assert [turn.tools for turn in program.turns] == [("grep", "cat"), ()]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.input.messages": json.dumps([{"role": "user", "parts": [
            {"type": "text", "content": "x" * 330}]}]), "gen_ai.output.text": "y" * 33},
        {"gen_ai.input.messages": [{"role": "user", "content": "x" * 330}],
         "gen_ai.output.messages": [{"role": "assistant", "content": "y" * 33}]},
        {"llm.input_messages.0.message.role": "user",
         "llm.input_messages.0.message.contents.0.message_content.type": "text",
         "llm.input_messages.0.message.contents.0.message_content.text": "x" * 330,
         "llm.output_messages.0.message.content": "y" * 33},
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "x" * 330,
         "gen_ai.completion.0.content": "y" * 33},
        {"input.value": "x" * 330, "output.value": "y" * 33},
    ],
    ids=["parts", "list", "OpenInference", "OpenLLMetry", "values"],
)  # fmt: skip
def test_text_of_every_convention_is_counted(attributes: dict[str, Any]) -> None:
    span = flat("1", 0, 1, attributes={"gen_ai.operation.name": "chat", **attributes})
    assert lengths(read([span])) == [(100, 10, 0)]


def test_text_in_events_is_counted() -> None:
    events = [
        {"name": "gen_ai.user.message", "attributes": {"content": "x" * 330}},
        {"name": "gen_ai.choice", "attributes": {"message": "y" * 33}},
    ]
    span = flat("1", 0, 1, attributes={"gen_ai.operation.name": "chat"}, span_events=events)
    assert lengths(read([span])) == [(100, 10, 0)]


def test_numbered_messages_are_in_the_order_of_their_numbers() -> None:
    many = {f"llm.input_messages.{i}.message.content": f"message {i}" for i in (10, 2, 1, 0)}
    (program,) = read([flat("1", 0, 1, attributes={**CHAT, **many})])
    assert [m.content for m in program.messages[:-1]] == [f"message {i}" for i in (0, 1, 2, 10)]


def test_tools_come_from_the_answer_where_they_have_no_spans() -> None:
    answer = [{"role": "assistant", "parts": [
        {"type": "tool_call", "name": "grep", "arguments": {"pattern": "x"}},
        {"type": "tool_call", "name": "cat", "arguments": {}}]}]  # fmt: skip
    first = flat("1", 0, 1, attributes={**CHAT, "gen_ai.output.messages": json.dumps(answer)})
    (program,) = read([first, flat("2", 2, 3, attributes=CHAT)])
    assert program.turns[0].tools == ("grep", "cat")


def test_a_span_without_an_end_is_left_out() -> None:
    repairs = Repairs()
    running = {**flat("2", 5, 6, attributes=CHAT), "end_time": None}
    (program,) = load_with(
        json_lines([flat("1", 0, 1, attributes=CHAT), running]), "file", repairs, Assumptions()
    )
    assert len(program.turns) == 1
    assert each_mentions(repairs.reasons(), "without its start or its end")


def test_a_span_that_ends_before_it_starts_has_no_duration() -> None:
    repairs = Repairs()
    spans = [flat("1", 2, 1, attributes=CHAT), flat("2", 3, 4, attributes=CHAT)]
    (program,) = load_with(json_lines(spans), "file", repairs, Assumptions())
    assert program.turns[0].tool_gap_s == 1
    assert mentions(repairs.reasons(), "ends before it starts")


def test_attributes_without_a_span_are_refused() -> None:
    assert sniff(json_lines(CHAT))
    with pytest.raises(TraceRejected, match="no span with a start"):
        load_with(json_lines(CHAT), "file", Repairs(), Assumptions())


def test_spans_of_web_requests_are_not_recognised() -> None:
    assert not sniff(json_lines([flat("1", 0, 1, attributes={"http.method": "GET"})]))
