"""Attributes of agents' spans: the GenAI conventions, OpenInference, OpenLLMetry, Vercel AI SDK,
and Claude Code.

In: a span as parsed JSON. Out: its attributes as one mapping, and the values that readers need.
"""

from __future__ import annotations

from typing import Any

from servers.basics.json_object import JsonObject
from servers.basics.text import text
from traces.formats.shared.calls import first_count
from traces.formats.shared.chat_messages import (
    as_json,
    called_tools,
    flat_text,
    from_text,
    messages,
    numbered,
)
from traces.formats.shared.spans import SpanKind, SpanUsage
from traces.lenient import first_text, items, mapping
from traces.program import Message, Provenance

Attributes = JsonObject

PREFIXES = ("gen_ai.", "llm.", "openinference.", "traceloop.", "ai.")
SESSIONS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id", "ai.telemetry.session")
PROVIDERS = (
    *("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "ai.model.provider"),
    *("gen_ai.request.model", "llm.model_name", "llm.request.model", "ai.model.id"),
)
"""The provider, else the model."""
ANSWER_IDS = ("gen_ai.response.id", "llm.response.id", "ai.response.id")
TOOL_IDS = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")
MODEL_OPERATIONS = ("chat", "generate_content", "text_completion", "completion")
KINDS = {
    **dict.fromkeys(MODEL_OPERATIONS, SpanKind.MODEL),
    "execute_tool": SpanKind.TOOL,
    "invoke_agent": SpanKind.AGENT,
    "llm": SpanKind.MODEL,
    "tool": SpanKind.TOOL,
    "agent": SpanKind.AGENT,
}
"""Kinds by `gen_ai.operation.name`, and by the kinds of OpenInference and OpenLLMetry."""
CLAUDE_CODE = {"claude_code.llm_request": SpanKind.MODEL, "claude_code.tool": SpanKind.TOOL}
"""Kinds of Claude Code's own spans by name. Their counts have no prefix."""
PROMPT = (
    *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
    *("llm.usage.prompt_tokens", "ai.usage.inputTokens", "ai.usage.promptTokens"),
    "input_tokens",
)
OUTPUT = (
    *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    *("llm.token_count.completion", "llm.usage.completion_tokens"),
    *("ai.usage.outputTokens", "ai.usage.completionTokens", "output_tokens"),
)
TOTAL = (
    *("gen_ai.usage.total_tokens", "llm.token_count.total", "llm.usage.total_tokens"),
    "ai.usage.totalTokens",
)
CACHED = (
    *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    *("llm.token_count.prompt_details.cache_read", "ai.usage.cachedInputTokens"),
    "cache_read_tokens",
)
CACHE_WRITES = (
    *("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens"),
    *("llm.token_count.prompt_details.cache_write", "cache_creation_tokens"),
)
REASONING = (
    *("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens"),
    *("llm.token_count.completion_details.reasoning", "ai.usage.reasoningTokens"),
)
INPUTS = ("gen_ai.input.messages", "llm.input_messages", "gen_ai.prompt", "ai.prompt.messages")
OUTPUTS = (
    *("gen_ai.output.messages", "llm.output_messages", "gen_ai.completion"),
    *("ai.response.toolCalls", "gen_ai.output.text", "ai.response.text"),
)
BEFORE = ("gen_ai.system_instructions", "gen_ai.tool.definitions", "llm.tools", "ai.prompt.tools")
"""Attributes that precede the messages of a prompt."""
MAX_NESTED = 10
KEPT_TOKENS = "turnstile.kept_tokens"
GAP_PROVENANCE = "turnstile.gap_provenance"
START_PROVENANCE = "turnstile.start_provenance"
"""Attributes of `traces.exports.otel` that the conventions lack: a model call's kept tokens and the
origin of the gap after it, and the origin of the delay of a sub-agent's first call."""


def attributes_of(raw: JsonObject) -> JsonObject:
    """Return the attributes of a span in any encoding, by full names, including those of the event
    that carries the messages."""
    found: JsonObject = {}
    _add(found, "", raw.get("attributes", raw.get("tags")), 0)
    for event in items(raw.get("events", raw.get("span_events"))):
        if "operation.details" in text(mapping(event).get("name")):
            _add(found, "", mapping(event).get("attributes"), 0)
    return found


def _add(found: JsonObject, prefix: str, value: object, depth: int) -> None:
    if isinstance(value, dict) and depth < MAX_NESTED:
        for name, inner in value.items():
            _add(found, f"{prefix}.{name}" if prefix else name, inner, depth + 1)
    elif isinstance(value, list) and not prefix:  # OTLP, Jaeger
        for pair in map(mapping, value):
            if key := text(pair.get("key")):
                found[key] = _plain(pair.get("value"), 0)
    elif prefix:
        found[prefix] = value


def _plain(value: object, depth: int) -> Any:
    """Return the value in OTLP's `{stringValue: …}`, or Jaeger's plain value."""
    if not isinstance(value, dict) or depth > MAX_NESTED:
        return value
    for name, inner in value.items():
        if name in ("arrayValue", "kvlistValue"):
            values = items(mapping(inner).get("values"))
            if name == "arrayValue":
                return [_plain(element, depth + 1) for element in values]
            pairs = [mapping(pair) for pair in values]
            return {text(p.get("key")): _plain(p.get("value"), depth + 1) for p in pairs}
        return inner
    return None


def is_known(attributes: Attributes) -> bool:
    return any(name.startswith(PREFIXES) for name in attributes)


def kind(attributes: Attributes, name: str) -> SpanKind:
    operation = text(attributes.get("ai.operationId"))
    if operation.endswith((".doGenerate", ".doStream")):
        return SpanKind.MODEL
    if operation:
        return SpanKind.TOOL if operation == "ai.toolCall" else SpanKind.AGENT
    for key in ("gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind"):
        if value := text(attributes.get(key)):
            return KINDS.get(value.lower(), SpanKind.OTHER)
    if name in CLAUDE_CODE or "gen_ai.tool.name" in attributes:
        return CLAUDE_CODE.get(name, SpanKind.TOOL)
    is_request = text(attributes.get("llm.request.type")) in MODEL_OPERATIONS
    return SpanKind.MODEL if is_request or name.startswith("chat ") else SpanKind.OTHER


def name_of(attributes: Attributes, span_kind: SpanKind, name: str) -> str:
    """Return the name of the span's tool or agent, "" for a model call without one."""
    agent = first_text(attributes, "gen_ai.agent.name", "agent.name")
    if span_kind is SpanKind.TOOL:
        names = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name")
        named = first_text(attributes, *names, "tool_name") or name
        return named.removeprefix("execute_tool ")
    return agent or (name if span_kind is SpanKind.AGENT else "")


def session(attributes: Attributes) -> str:
    return first_text(attributes, *SESSIONS)


def provider(attributes: Attributes) -> str:
    return first_text(attributes, *PROVIDERS)


def answer_id(attributes: Attributes, span_kind: SpanKind) -> str:
    """Return the id of an answer, or of a tool call."""
    return first_text(attributes, *(TOOL_IDS if span_kind is SpanKind.TOOL else ANSWER_IDS))


def usage(attributes: Attributes) -> SpanUsage:
    return SpanUsage(
        first_count(attributes, *PROMPT),
        first_count(attributes, *OUTPUT),
        first_count(attributes, *TOTAL),
        first_count(attributes, *CACHED) or 0,
        first_count(attributes, *CACHE_WRITES) or 0,
        first_count(attributes, *REASONING) or 0,
    )


def provenance(attributes: Attributes, name: str) -> Provenance:
    """Return the origin of a time: measured, unless the attribute says otherwise."""
    stated = text(attributes.get(name))
    return Provenance(stated) if stated in set(Provenance) else Provenance.MEASURED


def prompt(attributes: Attributes, events: object) -> tuple[Message, ...]:
    before = "\n".join(filter(None, (as_json(_value(attributes, name)) for name in BEFORE)))
    found: list[Message] = []
    for name in INPUTS:
        found = found or messages(_value(attributes, name))
    found = found or _events(events, "gen_ai.choice")
    found = found or messages(attributes.get("input.value"))
    return (*([Message("system", before)] if before and found else []), *found)


def answer(attributes: Attributes, events: object) -> str:
    parts = [flat_text(_value(attributes, name)) for name in OUTPUTS]
    choice = "\n".join(m.content for m in _events(events, "", "gen_ai.choice"))
    return "\n".join(filter(None, parts)) or choice or flat_text(attributes.get("output.value"))


def called(attributes: Attributes) -> tuple[str, ...]:
    """Return the tools in the answer."""
    found = (called_tools(_value(attributes, name)) for name in OUTPUTS)
    return next(filter(None, found), ())


def _value(attributes: Attributes, name: str) -> Any:
    value = from_text(attributes.get(name))
    return numbered(attributes, name) if value is None else value


def _events(events: object, excluded: str, only: str = "") -> list[Message]:
    """Return the messages in events named `gen_ai.ROLE.message` or `gen_ai.choice`."""
    found: list[Message] = []
    for event in map(mapping, items(events)):
        name = text(event.get("name"))
        is_message = name.startswith("gen_ai.") and name.endswith((".message", ".choice"))
        if not is_message or name == excluded or (only and name != only):
            continue
        content: JsonObject = {}
        _add(content, "", event.get("attributes"), 0)
        body = content or mapping(event.get("body"))
        role = text(body.get("role")) or name.split(".")[1]
        body = {key: value for key, value in body.items() if key != "gen_ai.system"}
        found.append(Message(role, flat_text(body)))
    return found
