"""Reads requests and answers of OpenAI's Responses API as chat completions.

Codex and the `openai` client use this API at `/v1/responses`. In: the body of a request; the events
of a stream, or a whole answer. Out: messages, tools, and chunks of chat completions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.gateway.answers import AnswerApi, ForwardedAnswer, json_text
from harness.replay.completion import error_message
from servers.basics.json_object import JsonObject
from traces.lenient import items, mapping

CALLS = ("function_call", "custom_tool_call", "local_shell_call")
REASONING = "reasoning"
ENDS = ("completed", "incomplete")
"""States of a response that has an answer. `queued` is a response in the background, whose answer
the gateway does not see."""


def chat_of(body: JsonObject) -> JsonObject:
    messages: list[JsonObject] = []
    if isinstance(instructions := body.get("instructions"), str) and instructions:
        messages.append({"role": "system", "content": instructions})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    answer: list[JsonObject] = []
    for item in map(mapping, items(given)):
        if item.get("type") in CALLS or item.get("role") == "assistant":
            answer.append(item)
        elif item.get("type") != REASONING:
            messages += [_answer(answer)] if answer else []
            messages.append(_message(item))
            answer = []
    messages += [_answer(answer)] if answer else []
    tools = [{"function": tool} for tool in map(mapping, items(body.get("tools")))]
    return {"messages": messages, "tools": tools}


def _message(item: JsonObject) -> JsonObject:
    if "output" in item:
        return {"role": "tool", "content": item["output"]}
    return {"role": item.get("role"), "content": item.get("content")}


def _answer(output: list[JsonObject]) -> JsonObject:
    """Return items of the model, which are in the output of a response and in later inputs."""
    return {
        "role": "assistant",
        "content": "".join(_text(i.get("content")) for i in output if i.get("role") == "assistant"),
        "reasoning": "".join(_text(i.get("content")) for i in output if i.get("type") == REASONING),
        "tool_calls": [_call(item) for item in output if item.get("type") in CALLS],
    }


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = (mapping(part).get("text") for part in items(content))
    return "".join(text for text in texts if isinstance(text, str))


def _call(item: JsonObject) -> JsonObject:
    arguments = item.get("arguments") or item.get("input") or ""
    if item.get("type") == "local_shell_call":
        arguments = json_text(item.get("action"))
    function = {"name": item.get("name") or item.get("type"), "arguments": arguments}
    return {"id": item.get("call_id"), "function": function}


@dataclass(slots=True)
class ResponsesAnswer(ForwardedAnswer):
    def _completion(self, answer: JsonObject) -> JsonObject | None:
        if answer.get("object") != "response" or answer.get("status") not in ENDS:
            return None
        return _chunk(items(answer.get("output")), answer)

    def _delta(self, event: JsonObject) -> JsonObject:
        kind, response = str(event.get("type")), mapping(event.get("response"))
        if kind.endswith(".delta") and self.first_token_at_s is None:
            self.first_token_at_s = self.last_byte_at_s
        if kind == "response.failed":
            self.error = error_message(json_text(response).encode(), self.secrets)
        self.complete |= kind in ("response.completed", "response.incomplete")
        item = mapping(event.get("item"))
        return _chunk([item] if kind == "response.output_item.done" else [], response)


def _chunk(output: list[Any], counted: JsonObject) -> JsonObject:
    usage = mapping(counted.get("usage"))
    details = mapping(usage.get("input_tokens_details"))
    return {
        "choices": [{"message": _answer([mapping(item) for item in output])}],
        "usage": {
            "prompt_tokens": usage.get("input_tokens"),
            "prompt_tokens_details": {"cached_tokens": details.get("cached_tokens")},
            "completion_tokens": usage.get("output_tokens"),
        }
        if usage
        else {},
        "metrics": counted.get("metrics"),
    }


RESPONSES = AnswerApi(chat_of, ResponsesAnswer)
