"""A turn inside the engine, and the tags that its client sent.

In: `vllm_xargs` of the request body, all optional: `program_id`, `turn` (its index in the program),
`is_last` (0 or 1), `tools` (names of the tools that the answer calls, separated by commas; "" for
none; at most 64), `warm_up` (1: an internal turn, sent before a measurement), `ended` (an internal
turn that reports the end of this program), and, for servers that replay answers, `answer` (token
ids with which the answer begins). Without `program_id`, the program is the session of the request,
which vLLM 0.32 reads from `session_id` in the body or `X-Session-ID`; `servers.identity.LAST` at
its end marks the last turn. Out: a `VllmTurn`. Invalid values are ignored, and so are ids and names
of more than 200 characters or with control characters. Standard library only; lengths in tokens,
times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from servers.basics.json_object import JsonObject
from servers.identity import LAST, is_valid_id
from servers.policies.base import Request
from servers.policies.runner import EngineTurn
from servers.programs import PromptStart, blocks_to_repeat

MAX_TOOLS = 64


class RequestTags(NamedTuple):
    program_id: str | None = None
    turn: int | None = None
    is_last: bool | None = None
    tools: tuple[str, ...] | None = None
    """None: the client sent no tools, so they are parsed from the answer."""
    warm_up: bool = False
    ended: str | None = None
    """The program that has ended."""

    @property
    def is_internal(self) -> bool:
        """Whether the turn belongs to no program and is hidden from the policy and the events."""
        return self.warm_up or self.ended is not None


def read_tags(xargs: JsonObject | None, session_id: str | None = None) -> RequestTags:
    xargs = xargs or {}
    ended = _id(xargs.get("ended"))
    turn, is_last = _integer(xargs.get("turn")), _integer(xargs.get("is_last"))
    session = (session_id or "").removesuffix(LAST)
    if session != session_id and session and is_last is None:
        is_last = 1
    return RequestTags(
        (_id(xargs.get("program_id")) or _id(session)) if ended is None else None,
        turn,
        bool(is_last) if is_last in (0, 1) else None,
        _tools(xargs.get("tools")),
        _integer(xargs.get("warm_up")) == 1,
        ended,
    )


def answer_of(xargs: JsonObject | None, vocabulary: int) -> list[int]:
    """Return the tokens with which the answer begins; none if the client sent none, or tokens
    outside a vocabulary of this size."""
    ids = (xargs or {}).get("answer")
    if not isinstance(ids, list) or not all(type(id) is int and 0 <= id < vocabulary for id in ids):
        return []
    return ids


def _tools(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, str):
        return None
    names = list(filter(None, map(str.strip, value.split(","))))
    valid = tuple(filter(is_valid_id, names))[:MAX_TOOLS]
    return valid if valid or not names else None


def _id(value: object) -> str | None:
    if value is None:
        return None
    id = str(value) if isinstance(value, str | int) else ""
    return id if is_valid_id(id) else None


def _integer(value: object) -> int | None:
    if value is None:
        return None
    try:
        return int(str(value))
    except ValueError:
        return int(value) if isinstance(value, bool) else None


class VllmTurn(EngineTurn):
    __slots__ = (
        "admitted_s",
        "block_hashes",
        "by_prompt",
        "hit_tokens",
        "kept",
        "request_id",
        "tags",
    )

    def __init__(
        self, request_id: str, view: Request, tags: RequestTags, by_prompt: bool = False
    ) -> None:
        super().__init__(
            view, has_program=tags.program_id is not None, is_internal=tags.is_internal
        )
        self.request_id = request_id
        """vLLM's id of the request."""
        self.block_hashes: Sequence[object] = ()
        """vLLM's hashes of the prompt's blocks, while the turn arrives."""
        self.tags = tags
        self.by_prompt = by_prompt
        """Whether its program was found by its prompt."""
        self.admitted_s: float | None = None
        """Time of the first admission."""
        self.hit_tokens = 0
        """Number of prompt tokens that were cached at the first admission."""
        self.kept: list[Any] = []
        """Blocks of vLLM with the states that a pin needs, which the turn keeps until it ends."""

    def arrive_with(self, block_hashes: Sequence[object], block_tokens: int) -> None:
        """Describe the prompt for `repeats`. A block's hash covers the blocks before it."""
        self.block_hashes = block_hashes
        if self.view.is_last is not False:
            blocks = min(blocks_to_repeat(self.view.prompt_tokens, block_tokens), len(block_hashes))
            self.prompt = PromptStart(blocks, block_hashes[blocks - 1] if blocks else None)

    def repeats(self, start: PromptStart) -> bool:
        hashes, blocks = self.block_hashes, start.blocks
        return not blocks or (len(hashes) >= blocks and hashes[blocks - 1] == start.content)

    @property
    def number(self) -> int:
        """Its index in the program, as counted by the client, or else by the engine."""
        return self.view.index if self.tags.turn is None else self.tags.turn
