"""The APIs by which live servers take turns: where a turn is sent, and how its answer is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from harness.replay.completion import PartialAnswer, chat_body, completion_body, text_body


@dataclass(frozen=True, slots=True)
class Api:
    path: str
    body: Callable[..., bytes]
    """Returns the request of a turn."""
    answer: type[PartialAnswer] = PartialAnswer


class Apis(NamedTuple):
    """The APIs of a server, for prompts of token ids and for recorded messages."""

    tokens: Api
    text: Api


OPENAI = Apis(Api("/v1/completions", completion_body), Api("/v1/chat/completions", chat_body))
WITHOUT_CHAT = OPENAI._replace(text=Api("/v1/completions", text_body))
"""Of a router that drops fields which it does not know from chat requests."""
DYNAMO = Apis(
    Api("/v1/completions", partial(completion_body, is_dynamo=True)),
    Api("/v1/chat/completions", partial(chat_body, is_dynamo=True)),
)
