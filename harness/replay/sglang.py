"""SGLang's own API: turns of token ids at `/generate`, and its cache.

A stream has events with `output_ids` and `meta_info`, and ends with `[DONE]`. By default each event
has all ids so far, and with `--incremental-streaming-output` only the new ones;
`meta_info.completion_tokens` counts all. Errors are events with `error`, or with a `finish_reason`
of type `abort`. Read in SGLang 0.5.23 (`srt/managers/tokenizer_manager.py`, `srt/entrypoints`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import orjson

from harness.replay.completion import (
    PartialAnswer,
    chat_body,
    error_message,
    text_body,
    without_prompt,
)
from harness.replay.http import RequestFailed, api_key, known_keys
from harness.replay.live_server import OPENAI, Api, Apis
from harness.replay.prompts import Ids
from servers.basics.errors import CellFailed, TurnFailed
from servers.basics.json_object import JsonObject
from traces import Turn
from traces.lenient import mapping, seconds

FLUSH_WITHIN_S = 30.0
"""How long a flush is tried again: SGLang refuses it while a request waits or runs."""
FLUSH_INTERVAL_S = 0.2
FLUSH_TIMEOUT_S = 10.0


def generate_body(
    _model: str,
    prompt: Ids,
    turn: Turn,
    program_id: str,
    _index: int,
    _is_last: bool,
    *,
    id_fields: Iterable[str] = (),
) -> bytes:
    """`routing_key` is what the header `X-SMG-Routing-Key` is in SGLang's OpenAI API."""
    body = {
        "input_ids": prompt,
        "sampling_params": sampling_params(turn.output_tokens),
        "stream": True,
        "routing_key": program_id,
        **dict.fromkeys(id_fields, program_id),
    }
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def sampling_params(output_tokens: int) -> JsonObject:
    """Return the parameters of an answer of exactly this length. SGLang refuses unknown ones.

    Not `ignore_eos`, with which SGLang reserves KV for the whole answer: agents do not send it, and
    `min_new_tokens` suppresses the tokens that end an answer too."""
    return {
        "max_new_tokens": output_tokens,
        "min_new_tokens": output_tokens,
        "temperature": 0,
    }


@dataclass(slots=True)
class GeneratedAnswer(PartialAnswer):
    """The part of an answer of `/generate` that has arrived."""

    def _event(self, event: bytes, at_s: float) -> None:
        if event.strip() == b"[DONE]":
            self.complete = True
            return
        chunk = orjson.loads(without_prompt(event))
        if "error" in chunk:
            raise TurnFailed(f"the engine failed: {error_message(event, self.secrets)}")
        meta, ids = chunk["meta_info"], chunk["output_ids"]
        reason = mapping(meta.get("finish_reason"))
        if reason.get("type") == "abort":
            message = error_message(orjson.dumps(reason), self.secrets)
            raise TurnFailed(f"the engine failed: {message}")
        self.finish_reason = str(reason.get("type") or self.finish_reason)
        counted = meta["completion_tokens"]
        new = ids[len(self.ids) :] if len(ids) >= counted else ids
        if new and self.first_token_at_s is None:
            self.first_token_at_s = at_s
        self._append_ids(new)
        self.usage = {
            "prompt_tokens": meta.get("prompt_tokens"),
            "completion_tokens": counted,
            "prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")},
        }
        if (queue_s := seconds(meta.get("queue_time"))) is not None:
            self.metrics = {"queue_time_ms": queue_s * 1000}


SGLANG_APIS = Apis(
    Api("/generate", generate_body, GeneratedAnswer),
    Api(OPENAI.text.path, partial(chat_body, ignore_eos=False)),
    Api(OPENAI.plain.path, partial(text_body, ignore_eos=False)),
)


def is_sglang(model: JsonObject) -> bool:
    """Return whether `/v1/models` lists the model as SGLang does."""
    return model.get("owned_by") == "sglang"


def flush_cache(url: str) -> None:
    """Empty the radix cache of a server. Raises CellFailed."""
    deadline_s = time.monotonic() + FLUSH_WITHIN_S
    while (refusal := _flush(url)) is not None:
        if time.monotonic() > deadline_s:
            raise CellFailed(
                f"{url}/flush_cache: the cache was not emptied within {FLUSH_WITHIN_S:g} s "
                f"({refusal}); use a server without other clients"
            )
        time.sleep(FLUSH_INTERVAL_S)


def _flush(url: str) -> str | None:
    """Return None if the cache was emptied, or why not."""
    from harness.replay.openai_client import fetch

    try:
        fetch(f"{url}/flush_cache", FLUSH_TIMEOUT_S, 1, b"")
    except RequestFailed as error:
        if error.status is None:
            return str(error)
        message = error_message(error.body, known_keys(api_key()))
        return f"status {error.status}: {message}"
    return None
