"""Formats the recorded answer of a turn as a response to an agent's request.

In: a program with its messages, the turn's index, the request's body. Out: a chat completion or a
completion (OpenAI's API), as one body or as the events of a stream, with the recorded token counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from harness.gateway.messages import functions, shell_tool
from servers.basics.json_object import JsonObject
from traces import Program


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, str]


def text_of(program: Program, index: int) -> str:
    """Return the text of a turn's answer, or "" if it was not recorded (the agent rejected it)."""
    position = program.prompt_messages[index]
    role, text = program.messages[position] if position < len(program.messages) else ("", "")
    return text if role == "assistant" else ""


def call_of(program: Program, index: int, text: str, tools: object) -> ToolCall | None:
    """Return the tool call of a turn's answer: the agent's shell tool with the turn's command.

    If the agent offers `finish` and `think` (OpenHands, which stops at an answer without a call),
    the last turn calls `finish`, and a turn without a command calls `think`.
    """
    offered = {name for name, _ in functions(tools)}
    if index == len(program.turns) - 1 and "finish" in offered:
        return ToolCall("finish", {"message": text})
    command, shell = program.turns[index].command, shell_tool(tools)
    if command is not None and shell is not None:
        return ToolCall(shell, {"command": command})
    return ToolCall("think", {"thought": text}) if "think" in offered else None


class RecordedAnswer:
    def __init__(
        self,
        program: Program,
        index: int,
        body: JsonObject,
        *,
        chat: bool,
        created_s: float,
    ) -> None:
        self._chat = chat
        self._text = text_of(program, index)
        self._call = call_of(program, index, self._text, body.get("tools")) if chat else None
        turn = program.turns[index]
        self._usage = {
            "prompt_tokens": turn.prompt_tokens,
            "completion_tokens": turn.output_tokens,
            "total_tokens": turn.context_tokens,
        }
        self._head: JsonObject = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{program.id}-{index}",
            "created": int(created_s),
            "model": body.get("model"),
        }

    def body(self) -> JsonObject:
        choice: JsonObject = {"index": 0, "finish_reason": self._finish, "logprobs": None}
        if self._chat:
            message: JsonObject = {"role": "assistant", "content": self._text}
            if calls := self._calls():
                message["tool_calls"] = calls
            choice["message"] = message
        else:
            choice["text"] = self._text
        return self._head | {
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": self._usage,
        }

    def events(self, with_usage: bool) -> Iterator[bytes]:
        for delta, finish in self._pieces():
            choice: JsonObject = {"index": 0, "finish_reason": finish, "logprobs": None}
            choice |= {"delta": delta} if self._chat else {"text": delta.get("content", "")}
            yield self._event({"choices": [choice]})
        if with_usage:
            yield self._event({"choices": [], "usage": self._usage})
        yield b"data: [DONE]\n\n"

    def _pieces(self) -> Iterator[tuple[JsonObject, str | None]]:
        yield {"role": "assistant", "content": self._text}, None
        if calls := self._calls():
            yield {"tool_calls": [{"index": 0, **call} for call in calls]}, None
        yield {}, self._finish

    def _event(self, chunk: JsonObject) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return b"data: " + orjson.dumps(self._head | {"object": kind} | chunk) + b"\n\n"

    @property
    def _finish(self) -> str:
        return "tool_calls" if self._call else "stop"

    def _calls(self) -> list[JsonObject]:
        if self._call is None:
            return []
        arguments = orjson.dumps(self._call.arguments).decode()
        function = {"name": self._call.name, "arguments": arguments}
        return [{"id": f"call-{self._head['id']}", "type": "function", "function": function}]
