"""Which program's conversation a prompt goes on with, and how much of the last prompt it repeats.

In: bodies of completion requests. Out: prompts as digests of their pieces, each of everything up to
there, so that two prompts share exactly the pieces whose digests are equal.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

PIECE = 256
"""Characters, or token ids, of a prompt without messages that are one piece."""
MOST_KEPT = 200_000
"""Digests of the programs last heard of; 30 MB."""


SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Prompt:
    digests: tuple[bytes, ...]
    ends: tuple[int, ...]
    """Length up to the end of each piece, in characters or ids; of the last, all of it."""
    least: int
    """So many pieces, from the first, tell programs apart: up to the first message that is not the
    system's (the task), or all of a prompt without messages."""
    system: int = 0
    """Length of the system messages at its beginning."""

    def shared(self, other: Prompt) -> int:
        """Leading pieces that both have."""
        pairs = zip(self.digests, other.digests, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self), len(other)))

    def __len__(self) -> int:
        return len(self.digests)


def prompt_of(body: Mapping[str, Any]) -> Prompt:
    messages = body.get("messages")
    if isinstance(messages, list):
        return _of_messages(messages)
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        pieces = [prompt[i : i + PIECE].encode() for i in _whole(prompt)]
    elif isinstance(prompt, list):
        pieces = [orjson.dumps(prompt[i : i + PIECE]) for i in _whole(prompt)]
    else:
        pieces = []
    ends = [PIECE * (i + 1) for i in range(len(pieces))]
    ends[-1:] = [len(prompt)] if pieces else []  # type: ignore[arg-type]
    return Prompt(tuple(_digests(pieces)), tuple(ends), len(pieces))


def _whole(prompt: str | list[Any]) -> range:
    return range(0, len(prompt) - PIECE + 1, PIECE)


def _of_messages(messages: list[Any]) -> Prompt:
    pieces = [message_piece(message) for message in messages]
    ends, end = [], 0
    for piece in pieces:
        end += len(piece)
        ends.append(end)
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    system = next((i for i, role in enumerate(roles) if role not in SYSTEM), len(roles))
    if system == len(pieces):  # no task: nothing tells it apart
        return Prompt(tuple(_digests(pieces)), tuple(ends), system)
    length = ends[system - 1] if system else 0
    return Prompt(tuple(_digests(pieces)), tuple(ends), system + 1, length)


def message_piece(message: Any) -> bytes:
    """What of a message counts: its role, its text and its calls. Clients write the answer that
    they got back in ways of their own (null for an empty text, calls with other keys)."""
    if not isinstance(message, Mapping):
        return orjson.dumps(message, default=str)
    calls = message.get("tool_calls")
    called = [_call(call) for call in calls] if isinstance(calls, list) else []
    return orjson.dumps([message.get("role"), _text(message.get("content")), called], default=str)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list):
        parts = [p.get("text", "") if isinstance(p, Mapping) else str(p) for p in content]
        return "\n".join(map(str, parts)).strip()
    return "" if content is None else str(content)


def _call(call: Any) -> list[Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return [str(call)]
    return [function.get("name"), function.get("arguments")]


def _digests(pieces: Iterable[bytes]) -> Iterator[bytes]:
    digest = b""
    for piece in pieces:
        digest = hashlib.blake2b(digest + piece, digest_size=16).digest()
        yield digest


def with_answer(prompt: Prompt, answer: Mapping[str, Any]) -> Prompt:
    """The prompt and the answer to it, as the next prompt will have them."""
    piece = message_piece(answer)
    before = prompt.digests[-1] if prompt.digests else b""
    digest = hashlib.blake2b(before + piece, digest_size=16).digest()
    end = (prompt.ends[-1] if prompt.ends else 0) + len(piece)
    return Prompt((*prompt.digests, digest), (*prompt.ends, end), prompt.least, prompt.system)


class Conversations:
    """Of programs that do not say who they are."""

    def __init__(self) -> None:
        self._programs: OrderedDict[bytes, dict[str, int]] = OrderedDict()
        """By digest: programs, the one last heard of last, and the length up to there."""

    def keep(self, program_id: str, prompt: Prompt) -> None:
        first = max(prompt.least - 1, 0)
        for digest, end in zip(prompt.digests[first:], prompt.ends[first:], strict=True):
            programs = self._programs.setdefault(digest, {})
            programs.pop(program_id, None)
            programs[program_id] = end
            self._programs.move_to_end(digest)
        while len(self._programs) > MOST_KEPT:
            self._programs.popitem(last=False)

    def find(self, prompt: Prompt, idle: Callable[[str], bool]) -> str | None:
        """The program with the longest beginning in common that waits for no answer, of several
        the one last heard of. A prompt that another had in whole begins a program of its own: a
        next turn always adds something."""
        for digest in reversed(prompt.digests):
            for program_id, end in reversed(self._programs.get(digest, {}).items()):
                if end < prompt.ends[-1] and idle(program_id):
                    return program_id
        return None
