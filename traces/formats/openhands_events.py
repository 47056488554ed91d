"""Converts events of OpenHands, in either format, to utterances.

In: legacy events (`{id, timestamp, source, action | observation, args | content, …}`) and events of
the SDK (`{kind, timestamp, source, …}`). Out: an `Utterance` for each event of the model, a tool or
a user, in order. Timestamps without a zone are assumed to be UTC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from servers.basics.json_object import JsonObject
from servers.basics.text import text
from servers.tool_names import call_names
from traces.formats.shared.chat_messages import plain_text
from traces.lenient import items, mapping, moment

STATES = ("null", "agent_state_changed")
"""Legacy observations that are not results of tools."""
ANSWERS = (
    *("message", "finish", "reject", "think", "delegate", "run", "run_ipython", "read", "write"),
    *("edit", "browse", "browse_interactive"),
)
"""Legacy actions that are decisions of the model, even without a recorded response."""


class Role(Enum):
    SYSTEM = "system"
    USER = "user"
    MODEL = "assistant"
    TOOL = "tool"
    CONDENSER = "condenser"
    """The condenser, whose summary replaces a part of the conversation."""


@dataclass(frozen=True, slots=True)
class Utterance:
    role: Role
    content: str
    at_s: float | None
    response_id: str | None = None
    """Id of the model's response. A response with several tool calls has an event for each."""
    tools: tuple[str, ...] = ()
    command: str | None = None
    other_prompt_text: str = ""
    """Additional text in the prompts: descriptions of tools, or the tool calls of an answer."""
    usage: JsonObject = field(default_factory=dict)
    """Token counts, if the event has them."""
    accumulated_usage: JsonObject = field(default_factory=dict)
    """Token counts of the conversation up to this event."""


def is_event(value: object) -> bool:
    event = mapping(value)
    is_legacy = "source" in event and ("action" in event or "observation" in event)
    return is_legacy or str(event.get("kind", "")).endswith(("Event", "Condensation"))


def utterances(events: list[Any]) -> Iterator[Utterance]:
    for event in map(mapping, events):
        utterance = _sdk(event) if "kind" in event else _legacy(event)
        if utterance is not None:
            yield utterance


def _sdk(event: JsonObject) -> Utterance | None:
    kind, at_s = event["kind"], moment(event.get("timestamp"))
    if kind == "SystemPromptEvent":
        return _system(plain_text(event.get("system_prompt")), event, at_s)
    if kind == "ActionEvent":
        calls, action = [event.get("tool_call")], mapping(event.get("action"))
        command = None if action.get("is_input") else action.get("command")
        return _model(
            event, plain_text(event.get("thought")), calls, event.get("tool_name"), command
        )
    if kind == "MessageEvent":
        content = plain_text(mapping(event.get("llm_message")).get("content"))
        if event.get("source") == "agent":
            return _model(event, content)
        return Utterance(Role.USER, content, at_s)
    if kind == "Condensation":
        id = text(event.get("llm_response_id")) or None
        return Utterance(Role.CONDENSER, text(event.get("summary")), at_s, id)
    if kind in ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent"):
        observation = mapping(event.get("observation"))
        content = plain_text(observation.get("content")) or text(observation.get("output"))
        reasons = (text(event.get(name)) for name in ("error", "rejection_reason"))
        return Utterance(Role.TOOL, content or next(filter(None, reasons), ""), at_s)
    return None


def _legacy(event: JsonObject) -> Utterance | None:
    at_s, args = moment(event.get("timestamp")), mapping(event.get("args"))
    source, action = event.get("source"), event.get("action")
    content = text(args.get("content")) or text(event.get("message"))
    if action == "system":
        return _system(text(args.get("content")), args, at_s)
    if action == "message" and source == "user":
        return Utterance(Role.USER, content, at_s)
    if action == "condensation":
        return Utterance(Role.CONDENSER, text(args.get("summary")), at_s)
    if "tool_call_metadata" in event and action:
        message = _message_of(event)
        tool = mapping(event["tool_call_metadata"]).get("function_name") or action
        command = args.get("command") if action == "run" and not args.get("is_input") else None
        calls = items(message.get("tool_calls"))
        return _model(event, plain_text(message.get("content")), calls, tool, command)
    if source == "agent" and action in ANSWERS:
        tool = None if action == "message" else action
        command = args.get("command") if action == "run" else None
        return _model(event, text(args.get("thought")) or content, [], tool, command)
    if event.get("observation") and event["observation"] not in STATES:
        return Utterance(Role.TOOL, text(event.get("content")), at_s)
    return None


def _model(
    event: JsonObject,
    content: str,
    calls: Iterable[object] = (),
    tool: object = None,
    command: object = None,
) -> Utterance:
    response = mapping(mapping(event.get("tool_call_metadata")).get("model_response"))
    name, script = text(tool), text(command)
    names = call_names(name, script) if name else ()
    return Utterance(
        Role.MODEL,
        content,
        moment(event.get("timestamp")),
        response_id=text(event.get("llm_response_id")) or text(response.get("id")) or None,
        tools=names,
        command=script if script and names != (name,) else None,
        other_prompt_text=" ".join(map(_call_text, calls)),
        usage=mapping(response.get("usage")),
        accumulated_usage=mapping(mapping(event.get("llm_metrics")).get("accumulated_token_usage")),
    )


def _message_of(event: JsonObject) -> JsonObject:
    response = mapping(mapping(event.get("tool_call_metadata")).get("model_response"))
    return mapping(mapping(next(iter(items(response.get("choices"))), None)).get("message"))


def _call_text(call: object) -> str:
    function = mapping(mapping(call).get("function") or call)
    return f"{text(function.get('name'))} {text(function.get('arguments'))}"


def _system(prompt: str, fields: JsonObject, at_s: float | None) -> Utterance:
    try:
        tools = json.dumps(items(fields.get("tools")), sort_keys=True)
    except RecursionError:
        tools = ""
    return Utterance(Role.SYSTEM, prompt, at_s, other_prompt_text=tools)
