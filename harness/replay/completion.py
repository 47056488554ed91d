"""Builds the request of a turn for an OpenAI-compatible server, and parses its streamed answer.

Token mode (`/v1/completions`): the prompt is token ids, and the answer contains the generated token
ids (`return_token_ids` of vLLM 0.10.2 and newer, or `nvext` of Dynamo). Text mode
(`/v1/chat/completions`): the prompt is messages, or for a router that does not pass all fields of
those on (`/v1/completions`), their text. A turn fails if its answer does not have the requested
length. Times in seconds on the clock of the caller, who reads the stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from msgspec import UNSET

from harness.replay import dynamo
from harness.replay.prompts import Ids
from harness.replay.sse import Events, data_of
from servers.basics.errors import TurnFailed
from servers.basics.json_object import JsonObject
from servers.basics.redact import redact
from servers.basics.text import text
from servers.records.turns import TurnRecord
from traces import Message, Turn
from traces.lenient import items, mapping, seconds, tokens
from traces.token_counts import TokenCounter

MAX_MESSAGE_CHARS = 200
SAMPLED = ("content", "text", "reasoning_content", "reasoning", "tool_calls", "refusal")
"""Fields of a choice with sampled tokens."""
RETRY_AFTER_S = 1.0
"""When a turn is sent again if the server does not say when. vLLM does not."""
MAX_RETRY_AFTER_S = 60.0
"""Limit of the time that a server may state, so that no turn waits long after the queue is free."""
TRY_AGAIN = "try again"
"""Part of vLLM's message for a full queue (`--max-num-queued-reqs`, `--max-num-queued-tokens`)."""
MAX_OUTPUT_TOKENS = 4_000_000
"""Limit of one answer, because a server may stream without end."""


def completion_body(
    model: str,
    prompt: Ids | str | Sequence[dict[str, str]],
    turn: Turn,
    program_id: str,
    index: int,
    is_last: bool,
    *,
    field: str = "prompt",
    id_fields: Iterable[str] = (),
    cache_salt: str | None = None,
    is_dynamo: bool = False,
    answer: Sequence[int] = (),
    ignore_eos: bool = True,
) -> bytes:
    """`field`: of the body, for the prompt; `id_fields`: in which the server expects the program's
    id. `cache_salt` (vLLM): only prompts with the same salt share KV. `answer`: tokens with which
    the answer begins, for servers that replay answers."""
    body: JsonObject = {"model": model, field: prompt, **dict.fromkeys(id_fields, program_id)}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    body |= {
        "max_tokens": turn.output_tokens,
        "min_tokens": turn.output_tokens,
        "ignore_eos": ignore_eos,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if is_dynamo:
        body |= dynamo.REQUEST
    else:
        body["return_token_ids"] = True
        body["vllm_xargs"] = {
            "program_id": program_id,
            "turn": index,
            "is_last": int(is_last),
            "tools": ",".join(turn.tools),
            **({"answer": answer} if answer else {}),
        }
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def chat_body(model: str, prompt: Sequence[Message], *turn: Any, **options: Any) -> bytes:
    messages = [message._asdict() for message in prompt]
    return completion_body(model, messages, *turn, field="messages", **options)


def text_body(model: str, prompt: Sequence[Message], *turn: Any, **options: Any) -> bytes:
    """Send the messages as one text, each after its role. A longer conversation only adds to it."""
    text = "".join(f"{message.role}: {message.content}\n" for message in prompt)
    return completion_body(model, text, *turn, **options)


class QueueFull(TurnFailed):
    """The server refused the turn because its queue is full, and takes it later."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def refusal(message: str, status: object, retry_after: str | None = None) -> TurnFailed:
    """Return the error of a turn that was answered with this status; `QueueFull` if the server
    takes it later. `retry_after`: a header in seconds; dates are not read."""
    if status not in (429, 503) or not (retry_after or TRY_AGAIN in message):
        return TurnFailed(message)
    is_number = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
    stated_s = float(retry_after) if retry_after and is_number else RETRY_AFTER_S
    return QueueFull(message, min(max(stated_s, RETRY_AFTER_S), MAX_RETRY_AFTER_S))


@dataclass(slots=True, kw_only=True)
class MeasuredAnswer:
    """What a client and its server have measured of an answer so far."""

    secrets: tuple[str, ...] = ()
    """Keys that error messages must not contain."""
    counter: TokenCounter | None = None
    """Counts the tokens that the server does not report."""
    is_counted: bool = False
    """Whether `counter` counted the tokens."""
    first_token_at_s: float | None = None
    last_byte_at_s: float = math.nan
    complete: bool = False
    """Whether the whole answer has arrived; the end of a stream is `[DONE]`."""
    finish_reason: str = ""
    """Why the answer ends. Some servers end the stream without `[DONE]` after it."""
    refusals: int = 0
    """How often the server's full queue refused the request before it took it."""
    refused_s: float = 0.0
    """Time until it was sent for the last time."""
    usage: JsonObject = field(default_factory=dict)
    metrics: JsonObject = field(default_factory=dict)
    _sampled: list[str] = field(default_factory=list)
    """The text of the answer, with its reasoning and its tool calls, if there is a counter."""

    @property
    def is_whole(self) -> bool:
        return self.complete or bool(self.finish_reason)

    def _read(self, chunk: JsonObject, at_s: float) -> list[JsonObject]:
        """Take the measurements of a chunk, which may lack choices, and return its choices."""
        self.usage = mapping(chunk.get("usage")) or self.usage
        self.metrics = mapping(chunk.get("metrics")) or self.metrics
        choices = [mapping(choice) for choice in items(chunk.get("choices"))]
        for choice in choices:
            self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
            if self.counter is not None:
                self._sampled += _sampled_texts(content_of(choice))
        if len(self._sampled) > MAX_OUTPUT_TOKENS:
            raise ValueError(f"more than {MAX_OUTPUT_TOKENS:,} tokens")
        if self.first_token_at_s is None and any(map(_is_sampled, choices)):
            self.first_token_at_s = at_s
        return choices

    def count(self, prompt: Sequence[str]) -> None:
        """Count the tokens of the answer and of the prompt, from its texts, if the server has not
        reported both and there is a counter."""
        reported = self._counted("prompt_tokens"), self.output_tokens
        if self.counter is None or all(reported):
            return
        answer = "".join(self._sampled)
        self.usage |= {
            "prompt_tokens": reported[0] or self.counter.length(prompt),
            "completion_tokens": reported[1] or (self.counter.length([answer]) if answer else 0),
        }
        self.is_counted = True

    def _counted(self, name: str) -> int | None:
        return _count(self.usage.get(name))

    @property
    def output_tokens(self) -> int:
        return self._counted("completion_tokens") or 0

    @property
    def cached_tokens(self) -> int | None:
        """Cached prompt tokens at first admission; None if the server does not report them."""
        return _count(mapping(self.usage.get("prompt_tokens_details")).get("cached_tokens"))

    @property
    def queue_s(self) -> float | None:
        """Seconds in the engine's queue; None if the server does not report the time."""
        value = self.metrics.get("queue_time_ms")
        queued_ms = None if isinstance(value, str) else seconds(value)
        return None if queued_ms is None else queued_ms / 1000


@dataclass(slots=True)
class PartialAnswer(MeasuredAnswer):
    """The part of an answer that has arrived."""

    sent_at_s: float
    text: bool = False
    """Text mode: token ids are not required, as the server's tokenizer may differ."""
    ids: list[int] = field(default_factory=list)
    nvext: JsonObject = field(default_factory=dict)
    """The last values of Dynamo's extension."""
    _events: Events = field(default_factory=Events)

    def take(self, received: bytes, at_s: float) -> None:
        """Parse bytes of the stream that arrived at `at_s`. Raises TurnFailed."""
        self.last_byte_at_s = at_s
        self._take(self._events.feed(received), at_s)

    def _take(self, events: Iterable[bytes], at_s: float) -> None:
        try:
            for event in events:
                if data := data_of(event):
                    self._event(data, at_s)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = shortened(f"{type(error).__name__}: {error}")
            raise TurnFailed(f"cannot read the stream as a completion: {problem}") from None

    def _event(self, event: bytes, at_s: float) -> None:
        if event.strip() == b"[DONE]":
            self.complete = True
            return
        chunk = orjson.loads(without_prompt(event))
        if "error" in chunk:
            # vLLM sends the refusal of a full queue as an event of a stream with status 200.
            message = f"the engine failed: {error_message(event, self.secrets)}"
            is_refusal = self.first_token_at_s is None
            raise refusal(message, mapping(chunk["error"]).get("code") if is_refusal else None)
        nvext = mapping(chunk.get("nvext"))
        for choice in self._read(chunk, at_s):
            ids = choice.get("token_ids", nvext.get("completion_token_ids"))
            if ids and self.first_token_at_s is None:
                self.first_token_at_s = at_s
            self._append_ids(ids or [])
            if ids is None and _is_sampled(choice) and not self.text:
                raise TurnFailed(
                    "the answer contains no token ids: token mode needs a server that supports "
                    "return_token_ids, such as vLLM 0.10.2 or newer, or Dynamo"
                )
        self.nvext |= nvext

    def _append_ids(self, ids: list[int]) -> None:
        if not all(type(id) is int and 0 <= id < 1 << 32 for id in ids):
            raise ValueError("token_ids contains a value that is not a token id")
        self.ids += ids
        if len(self.ids) > MAX_OUTPUT_TOKENS:
            raise ValueError(f"more than {MAX_OUTPUT_TOKENS:,} tokens")

    def begin_again(self) -> None:
        self.refusals += 1
        self.complete, self._events = False, Events()

    def check(self, turn: Turn, prompt: Sequence[str] = ()) -> None:
        """Raise TurnFailed unless the stream, which has ended, is complete and prompt and answer
        have the recorded lengths. `prompt`: its texts, in case that its tokens must be counted."""
        self._take(self._events.end(), self.last_byte_at_s)
        if not self.is_whole:
            raise TurnFailed(f"the stream was cut after {len(self.ids)} tokens")
        self.count(prompt)
        if not self.usage and self.text:
            raise TurnFailed(
                "the stream ended without usage, so the tokens of its answer are unknown; count "
                "them with --tokenizer FILE, or use a server that supports "
                "stream_options.include_usage, or --prompts tokens if it can return token ids"
            )
        if not self.usage:  # the prompt is token ids, and so is the answer
            self.usage = {"prompt_tokens": turn.prompt_tokens, "completion_tokens": len(self.ids)}
        if self.is_counted and not self.ids:
            self._check_end(turn)
            return
        counted = self._counted("prompt_tokens"), self._counted("completion_tokens")
        prompt_tokens = counted[0] if self.text else turn.prompt_tokens
        if counted != (prompt_tokens, turn.output_tokens):
            raise TurnFailed(
                f"the server counted {counted[0]} prompt and {counted[1]} output tokens, but the "
                f"trace has {turn.prompt_tokens} and {turn.output_tokens}"
            )
        if len(self.ids) != turn.output_tokens and (self.ids or not self.text):
            raise TurnFailed(
                f"the server counted {counted[1]} output tokens, but sent {len(self.ids)} token ids"
            )

    def _check_end(self, turn: Turn) -> None:
        """Raise TurnFailed if the server ended the answer before its length was reached. Tokens
        counted in the text differ from those that were sampled."""
        reason = self.finish_reason
        if reason not in ("", "length") and self.output_tokens < turn.output_tokens:
            raise TurnFailed(
                f"the server ended the answer ({shortened(reason)}) after {self.output_tokens} "
                f"tokens, counted with --tokenizer, but the trace has {turn.output_tokens}"
            )

    def check_recorded(self, ids: Sequence[int]) -> None:
        """Raise TurnFailed if the answer does not begin with these tokens. A server may send no
        token ids in text mode."""
        if self.ids and self.ids[: len(ids)] != list(ids):
            raise TurnFailed(
                "the answer is not the recorded one, so this server does not replay answers; use "
                "--answers generated"
            )

    def prompt_tokens(self, turn: Turn) -> int:
        """Return the recorded length, or in text mode the server's count."""
        return (self._counted("prompt_tokens") if self.text else None) or turn.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return len(self.ids) or (self._counted("completion_tokens") or 0 if self.text else 0)


def content_of(choice: JsonObject) -> JsonObject:
    """Return what a choice adds: the delta or message of a chat, or a completion's own fields."""
    return mapping(choice.get("delta")) or mapping(choice.get("message")) or choice


def _is_sampled(choice: JsonObject) -> bool:
    """Return whether a choice has sampled tokens of any kind; a role alone is none."""
    return any(content_of(choice).get(name) for name in SAMPLED)


def _sampled_texts(content: JsonObject) -> Iterator[str]:
    """Yield the texts that the model sampled. Some servers send reasoning under two names."""
    reasoning = content.get("reasoning_content") or content.get("reasoning")
    texts = (reasoning, *(content.get(name) for name in ("content", "text", "refusal")))
    yield from filter(None, map(text, texts))
    yield from call_texts(content)


def call_texts(message: JsonObject) -> Iterator[str]:
    """Yield the names and the arguments of the tools that a message calls."""
    for call in map(mapping, items(message.get("tool_calls"))):
        function = mapping(call.get("function"))
        yield from filter(None, map(text, (function.get("name"), function.get("arguments"))))


def _count(value: object) -> int | None:
    return tokens(value) if type(value) is int else None


def measure(
    record: TurnRecord, answer: MeasuredAnswer, prompt_tokens: int, sent_s: float, finished_s: float
) -> None:
    """Add the times and token counts of an answer to the turn's record.

    The times are those that a client measures: prefill includes the network and reloads, decode
    includes preemptions. If the answer has `queue_s`, the three sum to the turn's time, and queue
    includes the time for which a router held the turn back or a full queue refused it.
    """
    record.sent_at_s = sent_s
    record.first_token_at_s = first_token_s = answer.first_token_at_s
    record.finished_at_s = finished_s
    record.prompt_tokens = prompt_tokens
    record.output_tokens = answer.output_tokens
    record.counted = answer.is_counted or UNSET
    record.device_hit_tokens = answer.cached_tokens
    waited_s = (record.held_s or 0.0) + answer.refused_s
    record.queue_s = None if answer.queue_s is None else answer.queue_s + waited_s
    record.refusals, record.refused_s = answer.refusals or UNSET, answer.refused_s or UNSET
    if first_token_s is not None:
        record.decode_s = finished_s - first_token_s
        if record.queue_s is not None:
            record.prefill_s = first_token_s - sent_s - record.queue_s


def error_message(body: bytes, secrets: Sequence[str] = ()) -> str:
    """Return the message in an error body of vLLM or OpenAI, or the body's text.

    Servers may repeat secrets in it. They are redacted before the text is shortened, and again
    after JSON is decoded, because JSON can escape a text in several ways.
    """
    plain = redact(body.decode(errors="replace"), secrets)
    try:
        value = orjson.loads(plain)
    except orjson.JSONDecodeError:
        return shortened(plain)
    while isinstance(value, dict):
        value = next((value[k] for k in ("error", "message", "detail") if k in value), str(value))
    try:
        return shortened(redact(str(value), secrets))
    except RecursionError:
        return shortened(plain)


def shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def without_prompt(event: bytes) -> bytes:
    """Return the event with an empty `prompt_token_ids`. vLLM repeats the prompt's ids there, and
    parsing them would take longer than parsing everything else.

    The search cannot match inside a JSON string, where the quotes of the key would be escaped.
    """
    start = event.find(b'"prompt_token_ids":[')
    if start < 0:
        return event
    end = event.index(b"]", start)
    return event[:start] + b'"prompt_token_ids":[' + event[end:]
