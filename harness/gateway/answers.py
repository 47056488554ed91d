"""What an answer says, read off as it passes to the client.

In: the bytes of a streamed answer (chat completions or completions) or a whole one. Out: the bytes
that the client gets, and the answer's text, calls, tokens and the server's own times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.completion import cached_tokens, error_message, queue_s
from servers.tool_names import call_names, tool_names

MAX_EVENT_BYTES = 1 << 24


@dataclass(slots=True)
class Answer:
    secret: str | None = None
    """Not to be told in any message."""
    first_token_at_s: float | None = None
    last_byte_at_s: float | None = None
    text: str = ""
    reasoning: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    """What the server said instead of an answer, or amid it."""
    whole: bool = False
    _calls: dict[int, dict[str, str]] = field(default_factory=dict)

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
        calls = [{"function": call} for _, call in sorted(self._calls.items())]
        return {"role": "assistant", "content": self.text, "tool_calls": calls}

    @property
    def tools(self) -> tuple[str, ...]:
        """Of a call that runs a shell command, the command's own words: `bash` says nothing."""
        if not self._calls:
            return tool_names(self.text)
        return tuple(
            name
            for _, call in sorted(self._calls.items())
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
            self.error = error_message(body, self.secret)
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
            self.error = error_message(data, self.secret)
        self._chunk(chunk, at_s)
        return bool(chunk.get("usage")) and not chunk.get("choices")

    def _chunk(self, chunk: dict[str, Any], at_s: float) -> None:
        self.usage = chunk.get("usage") or self.usage
        self.metrics = chunk.get("metrics") or self.metrics
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            said = choice.get("delta") or choice.get("message") or choice
            text = said.get("content") or said.get("text") or ""
            reasoning = said.get("reasoning_content") or said.get("reasoning") or ""
            calls = said.get("tool_calls") or ()
            if (text or reasoning or calls) and self.first_token_at_s is None:
                self.first_token_at_s = at_s
            self.text += text if isinstance(text, str) else ""
            self.reasoning += reasoning if isinstance(reasoning, str) else ""
            for place, call in enumerate(calls):
                self._call(call, place)

    def _call(self, call: dict[str, Any], place: int) -> None:
        known = self._calls.setdefault(call.get("index", place), {"name": "", "arguments": ""})
        function = call.get("function") or {}
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""


class Tap:
    """A stream on its way to the client, which asked for the count of tokens or did not: then the
    event that we asked for is taken out again. Nothing else is held back but a torn event."""

    def __init__(self, answer: Answer, hide_usage: bool) -> None:
        self._answer = answer
        self._hide = hide_usage
        self._rest = b""

    def take(self, received: bytes, at_s: float) -> bytes:
        """What the client gets of it now. Raises a ValueError for an event without end."""
        *events, rest = (self._rest + received).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes")
        passed = []
        for event in events:
            data = b"\n".join(
                line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"
            )
            only_usage = bool(data) and self._answer.event(data, at_s)
            if not (only_usage and self._hide):
                passed.append(event + b"\n\n")
        self._rest = rest
        return b"".join(passed)

    def end(self) -> bytes:
        """What was left of a stream that was cut."""
        return self._rest


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0


def command_in(arguments: str) -> str:
    """Of a call; "" where it has none."""
    try:
        said = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    command = said.get("command") if isinstance(said, dict) else None
    return command if isinstance(command, str) else ""
