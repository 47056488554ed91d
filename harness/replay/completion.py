"""One turn on an OpenAI-compatible server, streamed: its body and its answer.

Token mode (`/v1/completions`): the prompt is token ids, and the ids that the engine produced come
back (`return_token_ids`, vLLM 0.10.2 and newer). Text mode (`/v1/chat/completions`): the prompt is
messages. The answer has exactly the length asked for, or the
turn has failed. Times are seconds on the clock of whoever reads the stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.redact import hidden
from harness.replay.schedule import Line
from harness.replay.sse import Events
from harness.replay.token_prompts import Ids
from servers.errors import TurnFailed
from traces import Message, Turn
from traces.lenient import mapping, seconds, tokens

MESSAGE_CHARS = 200
MOST_IDS = 4_000_000
"""Of one answer, whatever was asked for: a server may go on for ever."""


def completion_body(
    model: str, prompt: Ids, turn: Turn, program_id: str, index: int, is_last: bool
) -> bytes:
    return _body({"model": model, "prompt": prompt}, turn, program_id, index, is_last)


def chat_body(
    model: str,
    prompt: Sequence[Message],
    turn: Turn,
    program_id: str,
    index: int,
    is_last: bool,
    cache_salt: str | None = None,
) -> bytes:
    """`cache_salt` (vLLM): only prompts of the same salt share KV."""
    messages = [message._asdict() for message in prompt]
    asked = {"model": model, "messages": messages}
    if cache_salt is not None:
        asked["cache_salt"] = cache_salt
    return _body(asked, turn, program_id, index, is_last)


def _body(asked: dict[str, Any], turn: Turn, program_id: str, index: int, is_last: bool) -> bytes:
    body = {
        **asked,
        "max_tokens": turn.output_tokens,
        "min_tokens": turn.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "vllm_xargs": {
            "program_id": program_id,
            "turn": index,
            "is_last": int(is_last),
            "tools": ",".join(turn.tools),
        },
    }
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(slots=True)
class Answer:
    """What has arrived of an answer."""

    sent_at_s: float
    text: bool = False
    """Text mode: the server's tokenizer is its own, and ids are not needed."""
    secrets: tuple[str, ...] = ()
    """Not to be told in any message."""
    ids: list[int] = field(default_factory=list)
    first_token_at_s: float | None = None
    last_byte_at_s: float = math.nan
    whole: bool = False
    """The stream said that it is at its end."""
    usage: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    _events: Events = field(default_factory=Events)

    def take(self, received: bytes, at_s: float) -> None:
        """Bytes of the stream, and when they arrived; they may hold many tokens or none."""
        self.last_byte_at_s = at_s
        try:
            for event in self._events.feed(received):
                self._event(event, at_s)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TurnFailed(f"the stream is not a completion: {shortened(str(error))}") from None

    def _event(self, event: bytes, at_s: float) -> None:
        if event == b"[DONE]":
            self.whole = True
            return
        chunk = orjson.loads(_without_prompt(event))
        if "error" in chunk:
            raise TurnFailed(f"the engine failed: {error_message(event, self.secrets)}")
        for choice in chunk["choices"]:
            ids = choice.get("token_ids")
            said = choice.get("text") or (choice.get("delta") or {}).get("content")
            if (ids or (said and self.text)) and self.first_token_at_s is None:
                self.first_token_at_s = at_s
            self._produced(ids or [])
            if ids is None and said and not self.text:
                raise TurnFailed(
                    "the answer comes without token ids: token mode needs a server that knows "
                    "return_token_ids, such as vLLM 0.10.2 or newer"
                )
        self.usage = mapping(chunk.get("usage")) or self.usage
        self.metrics = mapping(chunk.get("metrics")) or self.metrics

    def _produced(self, ids: list[int]) -> None:
        if not all(type(id) is int and 0 <= id < 1 << 32 for id in ids):
            raise ValueError("token_ids holds what is no token's id")
        self.ids += ids
        if len(self.ids) > MOST_IDS:
            raise ValueError(f"more than {MOST_IDS:,} tokens")

    def check(self, turn: Turn) -> None:
        """That the stream is whole, and prompt and answer have the recorded lengths."""
        if not self.whole:
            raise TurnFailed(f"the stream was cut after {len(self.ids)} tokens")
        told = self._counted("prompt_tokens"), self._counted("completion_tokens")
        prompt_tokens = told[0] if self.text else turn.prompt_tokens
        if told != (prompt_tokens, turn.output_tokens):
            raise TurnFailed(
                f"the server counts {told[0]} prompt and {told[1]} output tokens, recorded are "
                f"{turn.prompt_tokens} and {turn.output_tokens}"
            )
        if len(self.ids) != turn.output_tokens and (self.ids or not self.text):
            raise TurnFailed(
                f"{told[1]} output tokens, but {len(self.ids)} token ids in the stream"
            )

    def prompt_tokens(self, turn: Turn) -> int:
        """As recorded, or in text mode as the server counts them."""
        return (self._counted("prompt_tokens") if self.text else None) or turn.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return len(self.ids) or (self._counted("completion_tokens") if self.text else None) or 0

    def _counted(self, name: str) -> int | None:
        return count(self.usage.get(name))

    @property
    def cached_tokens(self) -> int | None:
        return cached_tokens(self.usage)

    @property
    def queue_s(self) -> float | None:
        return queue_s(self.metrics)


def cached_tokens(usage: Mapping[str, Any]) -> int | None:
    """Of the prompt, at first admission; None where the server does not say."""
    return count(mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))


def count(said: object) -> int | None:
    """Of tokens, or None where it can be none."""
    return tokens(said) if type(said) is int else None


def queue_s(metrics: Mapping[str, Any]) -> float | None:
    """In the engine's queue; None where the server does not say."""
    value = metrics.get("queue_time_ms")
    queued_ms = None if isinstance(value, str) else seconds(value)
    return None if queued_ms is None else queued_ms / 1000


def as_client_sees(
    sent_s: float,
    first_token_s: float | None,
    finished_s: float,
    *,
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int | None,
    queue_s: float | None,
) -> Line:
    """Of a turn's line. Prefill and decode are what the client sees of them: the first holds the
    way there and reloads, the second preemptions. With `queue_s` they sum to the turn's time."""
    prefill_s = None
    if first_token_s is not None and queue_s is not None:
        prefill_s = first_token_s - sent_s - queue_s
    return {
        "sent_at_s": sent_s,
        "first_token_at_s": first_token_s,
        "finished_at_s": finished_s,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "device_hit_tokens": cached_tokens,
        "dram_hit_tokens": None,
        "ssd_hit_tokens": None,
        "queue_s": queue_s,
        "load_s": None,
        "prefill_s": prefill_s,
        "decode_s": None if first_token_s is None else finished_s - first_token_s,
        "preempted_s": None,
        "recompute_s": None,
        "preemptions": None,
        "pinned_hit": None,
    }


def measurements(turn: Turn, answer: Answer, finished_s: float) -> Line:
    """Of a turn's line: what came of it."""
    return as_client_sees(
        answer.sent_at_s,
        answer.first_token_at_s,
        finished_s,
        prompt_tokens=answer.prompt_tokens(turn),
        output_tokens=answer.output_tokens,
        cached_tokens=answer.cached_tokens,
        queue_s=answer.queue_s,
    )


def error_message(body: bytes, secrets: Sequence[str] = ()) -> str:
    """The message of an error's body, as vLLM and OpenAI write it, or its text; without the
    secrets, which servers like to repeat: hidden before it is shortened, and again once it is
    decoded, since JSON can write a text in many ways."""
    plain = hidden(body.decode(errors="replace"), secrets)
    try:
        value = orjson.loads(plain)
    except orjson.JSONDecodeError:
        return shortened(plain)
    while isinstance(value, dict):
        value = next((value[k] for k in ("error", "message", "detail") if k in value), str(value))
    try:
        return shortened(hidden(str(value), secrets))
    except RecursionError:
        return shortened(plain)


def shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


def _without_prompt(event: bytes) -> bytes:
    """With the ids of an answer vLLM sends back the prompt's too. Reading those would take longer
    than all the rest. Inside a JSON string the key's quotes would be escaped, so it is the key."""
    start = event.find(b'"prompt_token_ids":[')
    if start < 0:
        return event
    end = event.index(b"]", start)
    return event[:start] + b'"prompt_token_ids":[' + event[end:]
