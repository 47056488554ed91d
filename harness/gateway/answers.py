"""What an answer says, read off as it passes to the client.

In: the bytes of a streamed answer (chat completions or completions) or a whole one. Out: the bytes
that the client gets, and the answer's text, calls, tokens and the server's own times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.redact import MIN_CHARS, redact
from harness.replay.completion import cached_tokens, count, error_message, queue_s
from servers.tool_names import call_names, tool_names
from traces.lenient import items, mapping

MAX_EVENT_BYTES = 1 << 24
MAX_ANSWER_BYTES = 1 << 26
"""Of what is kept of one answer: a server may go on for ever."""


EACH_BYTES = 8
"""That a piece takes besides its text."""


@dataclass(slots=True)
class _Call:
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def function(self) -> dict[str, str]:
        return {"name": "".join(self.names), "arguments": "".join(self.arguments)}


@dataclass(slots=True)
class Answer:
    secrets: tuple[str, ...] = ()
    """Not to be told in any message."""
    first_token_at_s: float | None = None
    last_byte_at_s: float | None = None
    reasoned: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    """What the server said instead of an answer, or amid it."""
    whole: bool = False
    said: list[str] = field(default_factory=list)
    _calls: dict[int, _Call] = field(default_factory=dict)
    _kept_bytes: int = 0

    @property
    def text(self) -> str:
        self.said[:] = ["".join(self.said)]
        return self.said[0]

    @property
    def prompt_tokens(self) -> int:
        return _count(self.usage, "prompt_tokens")

    @property
    def output_tokens(self) -> int:
        return _count(self.usage, "completion_tokens")

    @property
    def cached_tokens(self) -> int | None:
        return cached_tokens(self.usage)

    @property
    def queue_s(self) -> float | None:
        return queue_s(self.metrics)

    def message(self) -> dict[str, Any]:
        """As the next prompt has it."""
        calls = [{"function": call.function()} for _, call in sorted(self._calls.items())]
        return {"role": "assistant", "content": self.text, "tool_calls": calls}

    @property
    def tools(self) -> tuple[str, ...]:
        """Of a call that runs a shell command, the command's own words: `bash` says nothing."""
        if not self._calls:
            return tool_names(self.text)
        called = [call.function() for _, call in sorted(self._calls.items())]
        return tuple(
            name
            for call in called
            for name in call_names(call["name"], command_in(call["arguments"]))
        )

    def read(self, body: bytes, at_s: float) -> None:
        """A whole answer."""
        self.last_byte_at_s = at_s
        try:
            said = orjson.loads(body)
        except orjson.JSONDecodeError:
            said = None
        if not isinstance(said, dict) or "choices" not in said:
            self.error = error_message(body, self.secrets)
            return
        self.whole = True
        self._chunk(said, at_s)
        self.first_token_at_s = None  # nobody saw it

    def event(self, data: bytes, at_s: float) -> bool:
        """An event of a stream. Returns whether it holds nothing but the count of tokens."""
        self.last_byte_at_s = at_s
        if data == b"[DONE]":
            self.whole = True
            return False
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(chunk, dict):
            return False
        if "error" in chunk:
            self.error = error_message(data, self.secrets)
        self._chunk(chunk, at_s)
        return bool(chunk.get("usage")) and not chunk.get("choices")

    def _chunk(self, chunk: dict[str, Any], at_s: float) -> None:
        self.usage = mapping(chunk.get("usage")) or self.usage
        self.metrics = mapping(chunk.get("metrics")) or self.metrics
        for choice in map(mapping, items(chunk.get("choices"))):
            if choice.get("index", 0) != 0:
                continue
            said = mapping(choice.get("delta")) or mapping(choice.get("message")) or choice
            text = _text(said.get("content")) or _text(said.get("text"))
            reasoning = said.get("reasoning_content") or said.get("reasoning")
            calls = items(said.get("tool_calls"))
            if (text or reasoning or calls) and self.first_token_at_s is None:
                self.first_token_at_s = at_s
            self.reasoned = self.reasoned or bool(_text(reasoning))
            self.said.append(self._kept(text))
            for place, call in enumerate(calls):
                self._call(mapping(call), place)

    def _call(self, call: Mapping[str, Any], place: int) -> None:
        index = call.get("index", place)
        known = self._calls.setdefault(index if type(index) is int else place, _Call())
        function = mapping(call.get("function"))
        known.names.append(self._kept(_text(function.get("name"))))
        known.arguments.append(self._kept(_text(function.get("arguments"))))

    def _kept(self, text: str) -> str:
        """Raises a ValueError where that is more than an answer may be."""
        self._kept_bytes += len(text) + EACH_BYTES
        if self._kept_bytes > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        return text


class Tap:
    """A stream on its way to the client, which asked for the count of tokens or did not: then the
    event that we asked for is taken out again. Nothing else is held back but a torn event."""

    def __init__(self, answer: Answer, hide_usage: bool, key: str | None) -> None:
        """`key`: the user's, which no error tells."""
        self._answer = answer
        self._key = key
        self._hide = hide_usage
        self._rest = bytearray()
        self._held = b""
        """A carriage return whose line feed may be next."""

    def take(self, received: bytes, at_s: float) -> bytes:
        """What the client gets of it now. Raises a ValueError for an event without end."""
        received = self._held + received
        self._held = b"\r" if received.endswith(b"\r") else b""
        seen = max(0, len(self._rest) - 1)
        self._rest += received.removesuffix(b"\r").replace(b"\r\n", b"\n")
        if self._rest.find(b"\n\n", seen) < 0:
            if len(self._rest) > MAX_EVENT_BYTES:
                raise ValueError(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes")
            return b""
        *events, rest = bytes(self._rest).split(b"\n\n")
        passed = []
        for event in events:
            data = b"\n".join(
                line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"
            )
            only_usage = bool(data) and self._answer.event(data, at_s)
            if self._answer.error is not None:
                event = without(event, self._key)
            if not (only_usage and self._hide):
                passed.append(event + b"\n\n")
        self._rest = bytearray(rest)
        return b"".join(passed)

    def end(self) -> bytes:
        """What was left of a stream that was cut."""
        return without(bytes(self._rest) + self._held, self._key)


def without(error: bytes, key: str | None) -> bytes:
    """What a server says instead of an answer, as it goes to the client."""
    if key is None or len(key) < MIN_CHARS:
        return error
    return redact(error.decode(errors="surrogateescape"), [key]).encode(errors="surrogateescape")


def _count(usage: Mapping[str, Any], name: str) -> int:
    return count(usage.get(name)) or 0


def _text(said: object) -> str:
    return said if isinstance(said, str) else ""


def command_in(arguments: str) -> str:
    """Of a call; "" where it has none."""
    try:
        said = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    command = said.get("command") if isinstance(said, dict) else None
    return command if isinstance(command, str) else ""
