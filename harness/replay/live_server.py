"""Live servers, the APIs by which they take turns, and the models that they list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aiohttp

from harness.replay.completion import PartialAnswer, chat_body, completion_body, text_body
from harness.replay.dynamo import Frontend
from harness.replay.http import API_KEY, RequestFailed, api_key, authorization
from harness.replay.identity import SessionEnd, identity_headers
from servers.basics.errors import Unavailable
from servers.basics.json_object import JsonObject
from servers.basics.text import one_line
from servers.policies.base import Costs
from traces.token_counts import TokenCounter

END_TIMEOUT_S = 5.0
LIST_TIMEOUT_S = 10.0
MAX_LIST_BYTES = 16 << 20


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
    plain: Api = Api("/v1/completions", text_body)
    """For messages, behind a router that drops fields which it does not know from chats."""


OPENAI = Apis(Api("/v1/completions", completion_body), Api("/v1/chat/completions", chat_body))
DYNAMO = Apis(
    Api("/v1/completions", partial(completion_body, is_dynamo=True)),
    Api("/v1/chat/completions", partial(chat_body, is_dynamo=True)),
)


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server that takes turns, of a replay or of a gateway's clients."""

    base_url: str
    """URL of the server, with or without `/v1`."""
    events: Path | None = None
    """File to which the server's vLLM plug-in writes its events."""
    kv_tokens: int = 0
    """Tokens that fit into its KV memory; 0 if unknown."""
    session_ends: tuple[SessionEnd, ...] = ()
    """How it learns that a program has ended, apart from a tag."""
    costs: Costs | None = None
    """Times of its prefills and decode steps; None if unknown."""
    behind: tuple[LiveServer, ...] = ()
    """The servers over which this one, a router of another project, distributes its turns."""
    apis: Apis = OPENAI
    """The same for all servers that share the load."""
    dynamo: Frontend | None = None
    """Set for a frontend of Dynamo, which distributes the turns over its workers."""
    tagged: bool = False
    """Whether it accepts `vllm_xargs` in the requests of agents."""

    @property
    def root(self) -> str:
        """Base URL without `/v1`."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    async def report_end(
        self,
        session: aiohttp.ClientSession,
        program_id: str,
        model: object,
        api_key: str | None,
    ) -> None:
        """Tell the server that a program has ended. A failure is ignored.

        `model`: of a vLLM, in which our plug-in releases the program's pin, or of Dynamo; None for
        other servers. A router that knows `session_ends` may pass that request on to any of its
        servers, so it does not get it.
        """
        requests: list[tuple[str, JsonObject]] = [
            (end.path, {end.field: program_id}) for end in self.session_ends
        ]
        headers = authorization(api_key)
        shortest = {"model": model, "prompt": [0], "max_tokens": 1}
        if self.dynamo is not None and self.dynamo.has_sessions:
            requests.append(("/v1/completions", shortest))
            headers |= identity_headers(program_id, program_id, is_final=True)
        elif model is not None and not self.session_ends:
            requests.append(("/v1/completions", {**shortest, "vllm_xargs": {"ended": program_id}}))
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                for path, body in requests:
                    async with session.post(
                        f"{self.root}{path}", json=body, headers=headers, allow_redirects=False
                    ) as answer:
                        await answer.content.readany()


@dataclass(frozen=True, slots=True)
class Service:
    """The servers of one model that share the load, and how turns are sent to them."""

    servers: Sequence[LiveServer]
    """A server with others `behind` it is the only one."""
    model: str
    vocabulary: range
    """The token ids that prompts may contain."""
    seed: int
    text: bool = False
    """Send the recorded messages instead of token ids."""
    turn_timeout_s: float | None = 3600.0
    cache_salt: str | None = None
    """In text mode: vLLM shares KV only between turns with the same salt."""
    replays_answers: bool = False
    """In text mode: the servers take recorded answers."""
    counter: TokenCounter | None = None
    """For texts and agents: counts the tokens that the servers do not report."""


def is_vllm(model: JsonObject) -> bool:
    return model.get("owned_by") == "vllm"


def served_models(url: str, label: str) -> list[JsonObject]:
    """Return the models of a server. Raises Unavailable, whose message begins with `label`
    (the option that gave the URL)."""
    from harness.replay.openai_client import fetch

    try:
        body = fetch(f"{url}/v1/models", LIST_TIMEOUT_S, MAX_LIST_BYTES)
    except RequestFailed as error:
        if error.status is not None:
            problem = f"/v1/models answered {error.status}{_hint(error.status)}"
        else:
            problem = (
                f"no OpenAI-compatible server responds ({one_line(str(error))}); check that it "
                f"runs, its host and port, and that {url}/v1/models lists its model"
            )
        raise Unavailable(f"{label} {url}: {problem}") from None
    try:
        return [model for model in json.loads(body)["data"] if isinstance(model, dict)]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Unavailable(
            f"{label} {url}: /v1/models did not return a JSON list of models; give the URL of an "
            "OpenAI-compatible server"
        ) from None


def _hint(status: int) -> str:
    if 300 <= status < 400:
        return ", a redirect, which is not followed; give the URL of the server itself"
    if status != 401:
        return ""
    return f"; it rejected the key in {API_KEY}" if api_key() else f"; set {API_KEY}"
