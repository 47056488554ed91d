"""Finds the program whose conversation a prompt continues, and how much of it the prompt repeats.

In: bodies of completion requests. Out: prompts as digests of their pieces. Each digest covers its
piece and all before it, so that two prompts share exactly the pieces whose digests are equal.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

PIECE = 256
"""Characters, or token ids, in one piece of a prompt without messages."""
MAX_DIGESTS = 200_000
"""Number of digests stored, of the most recently active programs; they take 30 MB."""

SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Prompt:
    digests: tuple[bytes, ...]
    ends: tuple[int, ...]
    """Length of the prompt up to the end of each piece, in characters or ids. The last piece ends
    where the prompt ends."""
    identifying: int
    """Number of leading pieces that identify a program: up to the first message after the system
    messages (the task), or all pieces of a prompt without messages."""
    system: int = 0
    """Length of the system messages at the beginning."""

    def shared(self, other: Prompt) -> int:
        """Number of leading pieces that both prompts have."""
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
        pieces = [prompt[i : i + PIECE].encode() for i in _piece_starts(prompt)]
    elif isinstance(prompt, list):
        pieces = [orjson.dumps(prompt[i : i + PIECE]) for i in _piece_starts(prompt)]
    else:
        pieces = []
    ends = [PIECE * (i + 1) for i in range(len(pieces))]
    ends[-1:] = [len(prompt)] if pieces else []  # type: ignore[arg-type]
    return Prompt(tuple(_digests(pieces)), tuple(ends), len(pieces))


def _piece_starts(prompt: str | list[Any]) -> range:
    return range(0, len(prompt) - PIECE + 1, PIECE)


def _of_messages(messages: list[Any]) -> Prompt:
    pieces = [message_piece(message) for message in messages]
    ends, end = [], 0
    for piece in pieces:
        end += len(piece)
        ends.append(end)
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    system = next((i for i, role in enumerate(roles) if role not in SYSTEM), len(roles))
    if system == len(pieces):  # without a task, no piece identifies the program
        return Prompt(tuple(_digests(pieces)), tuple(ends), system)
    length = ends[system - 1] if system else 0
    return Prompt(tuple(_digests(pieces)), tuple(ends), system + 1, length)


def message_piece(message: Any) -> bytes:
    """The parts of a message that are compared: its role, its text and its tool calls.

    Clients return an answer in different forms (null for an empty text, calls with other keys).
    """
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
    """The prompt followed by its answer, as the next prompt will contain them."""
    piece = message_piece(answer)
    before = prompt.digests[-1] if prompt.digests else b""
    digest = hashlib.blake2b(before + piece, digest_size=16).digest()
    end = (prompt.ends[-1] if prompt.ends else 0) + len(piece)
    return Prompt((*prompt.digests, digest), (*prompt.ends, end), prompt.identifying, prompt.system)


class Conversations:
    """The conversations of programs whose requests do not name them."""

    def __init__(self) -> None:
        self._programs: OrderedDict[bytes, dict[str, int]] = OrderedDict()
        """By digest: the programs with this beginning, the most recent one last, and its length."""

    def remember(self, program_id: str, prompt: Prompt) -> None:
        first = max(prompt.identifying - 1, 0)
        for digest, end in zip(prompt.digests[first:], prompt.ends[first:], strict=True):
            programs = self._programs.setdefault(digest, {})
            programs.pop(program_id, None)
            programs[program_id] = end
            self._programs.move_to_end(digest)
        while len(self._programs) > MAX_DIGESTS:
            self._programs.popitem(last=False)

    def find(self, prompt: Prompt, idle: Callable[[str], bool]) -> str | None:
        """Returns the idle program that shares the longest beginning, of several the most recent.

        A prompt that is contained in another one starts a new program, because the next turn of a
        program always adds something.
        """
        for digest in reversed(prompt.digests):
            for program_id, end in reversed(self._programs.get(digest, {}).items()):
                if end < prompt.ends[-1] and idle(program_id):
                    return program_id
        return None
