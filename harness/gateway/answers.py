"""Parses a server's answer while it is forwarded to the client.

In: the bytes of a streamed or whole answer. Out: the bytes for the client, and the answer's text,
tool calls, token counts, and times reported by the server. Answers are read as chat completions or
completions; `anthropic_messages` and `openai_responses` translate other APIs' answers.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from harness.replay.completion import MeasuredAnswer, content_of, error_message
from harness.replay.sse import Events, data_of
from servers.basics.json_object import JsonObject
from servers.basics.redact import key_forms, redact_bytes
from servers.tool_names import call_names, tool_names
from traces.lenient import items, mapping

MAX_EVENT_BYTES = 1 << 24
MAX_ANSWER_BYTES = 1 << 26
"""Limit of the text stored of one answer, because a stream may be endless."""
CHUNK_OVERHEAD_BYTES = 8
"""Fixed overhead per streamed chunk."""


@dataclass(slots=True)
class _Call:
    id: str = ""
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def function(self) -> dict[str, str]:
        return {"name": "".join(self.names), "arguments": "".join(self.arguments)}


@dataclass(slots=True)
class ForwardedAnswer(MeasuredAnswer):
    reasoned: bool = False
    error: str | None = None
    """The error that the server returned instead of an answer, or sent within a stream."""
    texts: list[str] = field(default_factory=list)
    """The text of each chunk."""
    _calls: list[_Call] = field(default_factory=list)
    _open: dict[str | int | None, _Call] = field(default_factory=dict)
    """The last call with each id and index, and the last call of all."""
    _stored_bytes: int = 0

    @property
    def text(self) -> str:
        self.texts[:] = ["".join(self.texts)]
        return self.texts[0]

    @property
    def prompt_tokens(self) -> int:
        return self._counted("prompt_tokens") or 0

    def message(self) -> JsonObject:
        """Return the answer as a message of the next prompt."""
        calls = [{"function": function} for function in self._functions()]
        return {"role": "assistant", "content": self.text, "tool_calls": calls}

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the called tools; for a shell command, the names of its programs."""
        if not self._calls:
            return tool_names(self.text)
        return tuple(
            name
            for call in self._functions()
            for name in call_names(call["name"], command_in(call["arguments"]))
        )

    def _functions(self) -> list[dict[str, str]]:
        return [call.function() for call in self._calls]

    def read_whole(self, body: bytes, at_s: float) -> None:
        """Parse an answer that is not streamed."""
        self.last_byte_at_s = at_s
        try:
            parsed = mapping(orjson.loads(body))
        except orjson.JSONDecodeError:
            parsed = {}
        if (completion := self._completion(parsed)) is None:
            self.error = error_message(body, self.secrets)
            return
        self.complete = True
        self._chunk(completion, at_s)
        self.first_token_at_s = None  # unknown without a stream

    def _completion(self, answer: JsonObject) -> JsonObject | None:
        return answer if "choices" in answer else None

    def _delta(self, event: JsonObject) -> JsonObject:
        return event

    def read_event(self, data: bytes, at_s: float) -> bool:
        """Parse an event of a stream. Returns whether it contains only the usage."""
        self.last_byte_at_s = at_s
        if data.strip() == b"[DONE]":
            self.complete = True
            return False
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(event, dict):
            return False
        if event.get("error") or event.get("type") == "error":
            self.error = error_message(data, self.secrets)
        chunk = self._delta(event)
        self._chunk(chunk, at_s)
        return bool(chunk.get("usage")) and not chunk.get("choices")

    def _chunk(self, chunk: JsonObject, at_s: float) -> None:
        for choice in self._read(chunk, at_s):
            if choice.get("index", 0) != 0:
                continue
            content = content_of(choice)
            text = _text(content.get("content")) or _text(content.get("text"))
            reasoning = content.get("reasoning_content") or content.get("reasoning")
            self.reasoned = self.reasoned or bool(_text(reasoning))
            self.texts.append(self._within_limit(text))
            for call in map(mapping, items(content.get("tool_calls"))):
                self._call(call, is_whole="message" in choice)

    def _call(self, call: JsonObject, *, is_whole: bool) -> None:
        """Add a part of a tool call, or a whole one. Its id decides which call it is of, then its
        index; servers send neither, or the same index for all. A name begins a call."""
        id, index = _text(call.get("id")), call.get("index")
        index = index if type(index) is int else None
        function = mapping(call.get("function"))
        name, arguments = _text(function.get("name")), _text(function.get("arguments"))
        merged = self._open.get(id) if id else None
        if merged is None:
            merged = self._open.get(index)
            if merged is not None and ((id and merged.id) or (name and merged.arguments)):
                merged = None
        if merged is None or is_whole:
            merged = _Call()
            self._calls.append(merged)
        merged.id = merged.id or id
        self._open |= dict.fromkeys((merged.id, index, None), merged)
        merged.names.append(self._within_limit(name))
        merged.arguments.append(self._within_limit(arguments))

    def _within_limit(self, text: str) -> str:
        """Count the text. Raises ValueError if the answer exceeds MAX_ANSWER_BYTES."""
        self._stored_bytes += len(text) + CHUNK_OVERHEAD_BYTES
        if self._stored_bytes > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        return text


class Tap:
    """Parses a stream and returns the bytes for the client.

    Removes the usage event if the client did not request it. Buffers only incomplete events.
    """

    def __init__(self, answer: ForwardedAnswer, hide_usage: bool, key: str | None) -> None:
        """`key`: the user's API key, which is removed."""
        self._answer = answer
        self._redacted = key_forms(key, only_distinctive=True)
        self._redacted_in_errors = key_forms(key)
        self._hide = hide_usage
        self._events = Events(MAX_EVENT_BYTES)

    def feed(self, received: bytes, at_s: float) -> bytes:
        """Return the complete events for the client.

        Raises ValueError for an event that is longer than MAX_EVENT_BYTES.
        """
        return b"".join(self._forwarded(event, at_s) for event in self._events.feed(received))

    def _forwarded(self, event: bytes, at_s: float) -> bytes:
        data = data_of(event)
        only_usage = bool(data) and self._answer.read_event(data, at_s)
        if only_usage and self._hide:
            return b""
        failed = self._answer.error is not None
        return redact_bytes(event, self._redacted_in_errors if failed else self._redacted) + b"\n\n"

    def end(self) -> bytes:
        """Return what is left at the end of the stream for the client."""
        rest = self._events.rest()
        data = data_of(rest)
        only_usage = bool(data) and self._answer.read_event(data, self._answer.last_byte_at_s)
        return b"" if only_usage and self._hide else redact_bytes(rest, self._redacted_in_errors)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def json_text(value: object) -> str:
    """Return a value as JSON; "" if it is nested deeper than orjson serializes."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return ""


def command_in(arguments: str) -> str:
    """Return the shell command in the arguments of a call, which Codex sends as `cmd` or as a list
    of words; "" if there is none."""
    try:
        parsed = mapping(orjson.loads(arguments))
    except orjson.JSONDecodeError:
        return ""
    command = parsed.get("command") or parsed.get("cmd")
    words = [_text(word) for word in items(command)]
    if len(words) == 3 and words[1] in ("-c", "-lc"):
        return words[2]
    return shlex.join(words) or _text(command)


class AnswerApi(NamedTuple):
    """How the requests and the answers of an API are read."""

    chat: Callable[[JsonObject], JsonObject]
    """Returns the `messages` and `tools` of a request as a chat completion has them."""
    answer: type[ForwardedAnswer]
    has_stream_options: bool = False
    """Whether streams contain token counts only if the request asks for them."""
