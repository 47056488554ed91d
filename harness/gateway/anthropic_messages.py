"""Reads requests and answers of Anthropic's Messages API as chat completions.

Claude Code and the `anthropic` client use this API at `/v1/messages`. In: the body of a request;
the events of a stream, or a whole answer. Out: messages, tools, and chunks of chat completions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.gateway.answers import AnswerApi, ForwardedAnswer, json_text
from servers.basics.json_object import JsonObject
from traces.lenient import items, mapping, tokens

BILLING = "x-anthropic-billing-header"
"""Begins a block of Claude Code's system prompt that differs in each request. vLLM removes it."""
INPUT_TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Counts that sum to the tokens of the prompt."""
COUNTS = (*INPUT_TOKENS, "output_tokens")


def chat_of(body: JsonObject) -> JsonObject:
    messages = [{"role": "system", "content": _joined(body.get("system"))}]
    for message in map(mapping, items(body.get("messages"))):
        messages += _messages(message)
    functions = [
        {"function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in map(mapping, items(body.get("tools")))
    ]
    return {"messages": messages if messages[0]["content"] else messages[1:], "tools": functions}


def _messages(message: JsonObject) -> Iterator[JsonObject]:
    """Yield each result of a tool as a message, and then the rest of the message, if any."""
    content = message.get("content")
    blocks = [mapping(block) for block in items(content)]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    for result in results:
        yield {"role": "tool", "content": _joined(result.get("content"))}
    if len(results) < len(blocks) or not blocks:
        yield {"role": message.get("role"), **_content(content)}


def _content(content: object) -> JsonObject:
    blocks = [mapping(block) for block in items(content)]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    thinking = [block.get("thinking") for block in blocks if block.get("type") == "thinking"]
    return {
        "content": _joined(content),
        "tool_calls": calls,
        "reasoning": "".join(part for part in thinking if isinstance(part, str)),
    }


def _call(block: JsonObject) -> JsonObject:
    function = {"name": block.get("name"), "arguments": json_text(block.get("input") or {})}
    return {"id": block.get("id"), "function": function}


def _joined(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = (mapping(block).get("text") for block in items(content))
    return "".join(t for t in texts if isinstance(t, str) and not t.startswith(BILLING))


@dataclass(slots=True)
class MessagesAnswer(ForwardedAnswer):
    _counts: dict[str, int] = field(default_factory=dict)
    """The last values of COUNTS: the events of a stream contain some of them."""

    def _completion(self, answer: JsonObject) -> JsonObject | None:
        if answer.get("type") != "message":
            return None
        message = _content(answer.get("content"))
        return self._chat({"message": message, "finish_reason": "stop"}, answer)

    def _delta(self, event: JsonObject) -> JsonObject:
        kind, delta = event.get("type"), mapping(event.get("delta"))
        self.complete |= kind == "message_stop"
        block, index = mapping(event.get("content_block")), event.get("index")
        choice: JsonObject = {"finish_reason": delta.get("stop_reason")}
        if block.get("type") == "tool_use":
            function = {"name": block.get("name")}
            call = {"index": index, "id": block.get("id"), "function": function}
            choice["delta"] = {"tool_calls": [call]}
        elif "partial_json" in delta:
            function = {"arguments": delta["partial_json"]}
            choice["delta"] = {"tool_calls": [{"index": index, "function": function}]}
        else:
            choice["delta"] = {"content": delta.get("text"), "reasoning": delta.get("thinking")}
        return self._chat(choice, mapping(event.get("message")) or event)

    def _chat(self, choice: JsonObject, counted: JsonObject) -> JsonObject:
        usage = mapping(counted.get("usage"))
        given = {name: tokens(usage[name]) for name in COUNTS if type(usage.get(name)) is int}
        self._counts |= {name: count for name, count in given.items() if count is not None}
        total: JsonObject = {"completion_tokens": self._counts.get("output_tokens")}
        if "input_tokens" in self._counts:
            total["prompt_tokens"] = sum(self._counts.get(name, 0) for name in INPUT_TOKENS)
        if (cached := self._counts.get("cache_read_input_tokens")) is not None:
            total["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"choices": [choice], "usage": total}


MESSAGES = AnswerApi(chat_of, MessagesAnswer)
