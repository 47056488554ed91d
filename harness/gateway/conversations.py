"""Finds the program whose conversation a prompt continues, and the part that the prompt repeats.

In: bodies of completion requests. Out: prompts as digests of their pieces. Each digest also covers
the previous pieces, so two prompts share exactly the pieces with equal digests. Recordings with
messages keep the new ones of each turn, from which `traces.formats.run_turns` rebuilds the
conversation.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import orjson

from harness.gateway.answers import ForwardedAnswer, command_in
from servers.basics.json_object import JsonObject
from servers.records.turns import ChatMessage, TurnRecord
from traces.formats.mini_swe_agent import bash_blocks
from traces.formats.shared.chat_messages import plain_text
from traces.lenient import items, mapping

PIECE = 256
"""Length of a piece in characters or token ids. In a chat, each message is a piece."""
MAX_DIGESTS = 200_000
"""Limit of stored digests, which take 30 MB; the most recent programs keep theirs."""

SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class DigestedPrompt:
    digests: tuple[bytes, ...]
    ends: tuple[int, ...]
    """Offset of the end of each piece, in characters or ids. The last one is the whole length."""
    identifying: int
    """Number of leading pieces that identify a program: the system messages and the first message
    after them (the task), or all pieces of a prompt without messages."""
    system: int = 0
    """Length of the system messages at the beginning."""
    in_tokens: bool = False
    """Whether lengths are numbers of token ids, not of characters."""
    begins: bool = False
    """Whether this is the first prompt of a chat: it contains no answer."""

    @property
    def system_digest(self) -> bytes:
        """The digest of the system messages; empty if there are none."""
        return self.digests[self.identifying - 2] if self.system else b""

    def shared(self, other: DigestedPrompt) -> int:
        """Return the number of leading pieces that both prompts have."""
        pairs = zip(self.digests, other.digests, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self), len(other)))

    def __len__(self) -> int:
        return len(self.digests)


def prompt_of(body: JsonObject) -> DigestedPrompt:
    messages = body.get("messages")
    if isinstance(messages, list):
        return _of_messages(messages)
    prompt, in_tokens = body.get("prompt"), False
    if isinstance(prompt, str):
        pieces = [prompt[i : i + PIECE].encode() for i in _piece_starts(prompt)]
    elif isinstance(prompt, list):
        pieces = [orjson.dumps(prompt[i : i + PIECE]) for i in _piece_starts(prompt)]
        in_tokens = bool(prompt) and type(prompt[0]) is int
    else:
        pieces = []
    ends = [PIECE * (i + 1) for i in range(len(pieces))]
    ends[-1:] = [len(prompt)] if pieces else []  # type: ignore[arg-type]
    return DigestedPrompt(tuple(_digests(pieces)), tuple(ends), len(pieces), in_tokens=in_tokens)


def _piece_starts(prompt: str | list[Any]) -> range:
    return range(0, len(prompt) - PIECE + 1, PIECE)


def _of_messages(messages: list[Any]) -> DigestedPrompt:
    pieces = [message_piece(message) for message in messages]
    digests, ends = tuple(_digests(pieces)), tuple(accumulate(map(len, pieces)))
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    system = next((i for i, role in enumerate(roles) if role not in SYSTEM), len(roles))
    if system == len(pieces):  # without a task, no piece identifies the program
        return DigestedPrompt(digests, ends, system)
    length, begins = ends[system - 1] if system else 0, "assistant" not in roles
    return DigestedPrompt(digests, ends, system + 1, length, begins=begins)


def message_piece(message: Any) -> bytes:
    """Return the parts of a message that are compared: its role, its text and its tool calls.

    Other parts are ignored, because clients change them when they repeat an answer (null for an
    empty text, calls with other keys, arguments with other spaces).
    """
    if not isinstance(message, Mapping):
        return orjson.dumps(message, default=str)
    calls = message.get("tool_calls")
    called = [_call(call) for call in calls] if isinstance(calls, list) else []
    content = plain_text(message.get("content")).strip()
    return orjson.dumps([message.get("role"), content, called], default=str)


def _call(call: Any) -> list[Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return [str(call)]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError):
            arguments = orjson.dumps(orjson.loads(arguments or "{}")).decode()
    return [function.get("name"), arguments]


def _digests(pieces: Iterable[bytes]) -> Iterator[bytes]:
    digest = b""
    for piece in pieces:
        digest = hashlib.blake2b(digest + piece, digest_size=16).digest()
        yield digest


def with_answer(prompt: DigestedPrompt, answer: JsonObject) -> DigestedPrompt:
    """Return the prompt followed by its answer, as the next prompt will contain them."""
    piece = message_piece(answer)
    before = prompt.digests[-1] if prompt.digests else b""
    digest = hashlib.blake2b(before + piece, digest_size=16).digest()
    end = (prompt.ends[-1] if prompt.ends else 0) + len(piece)
    return replace(prompt, digests=(*prompt.digests, digest), ends=(*prompt.ends, end))


class Conversations:
    """The conversations of programs whose requests do not name them."""

    def __init__(self) -> None:
        self._programs: OrderedDict[bytes, dict[str, int]] = OrderedDict()
        """By digest of a beginning: its length, by program; the most recent program is last."""

    def remember(self, program_id: str, prompt: DigestedPrompt) -> None:
        first = max(prompt.identifying - 1, 0)
        for digest, end in zip(prompt.digests[first:], prompt.ends[first:], strict=True):
            programs = self._programs.setdefault(digest, {})
            programs.pop(program_id, None)
            programs[program_id] = end
            self._programs.move_to_end(digest)
        while len(self._programs) > MAX_DIGESTS:
            self._programs.popitem(last=False)

    def find(self, prompt: DigestedPrompt, idle: Callable[[str], bool]) -> str | None:
        """Return the idle program that shares the longest beginning; among equals, the most recent.

        A prompt that is the beginning of another one starts a new program, because each turn of a
        program adds something to the prompt.
        """
        for digest in reversed(prompt.digests):
            for program_id, end in reversed(self._programs.get(digest, {}).items()):
                if end < prompt.ends[-1] and idle(program_id):
                    return program_id
        return None


def add_messages(
    record: TurnRecord, body: JsonObject, repeated: int, answer: ForwardedAnswer
) -> None:
    """Add the messages of a chat to the turn's record; a request that is not a chat has none.

    `repeated`: the number of leading messages that repeat the program's last prompt and answer.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    record.messages = [_message(message) for message in messages[repeated:]]
    record.messages_repeated = repeated
    record.answer = answer.text
    record.command = _command(answer, shell_tool(body.get("tools")))


def _message(message: object) -> ChatMessage:
    """Return a message of the request. Outputs of tools become user messages, which all chat
    templates accept."""
    fields = mapping(message)
    role = fields.get("role")
    role = "system" if role in SYSTEM else "assistant" if role == "assistant" else "user"
    return ChatMessage(role, plain_text(fields.get("content")))


def _command(answer: ForwardedAnswer, shell: str | None) -> str | None:
    calls = [call["function"] for call in answer.message()["tool_calls"]]
    if not calls:
        blocks = bash_blocks(answer.text)
        return blocks[0] if len(blocks) == 1 else None
    return "\n".join(command_in(c["arguments"]) for c in calls if c["name"] == shell) or None


def shell_tool(tools: object) -> str | None:
    """Return the name of the offered shell tool: the first one with a free-text `command`."""
    for name, parameters in functions(tools):
        command = mapping(mapping(parameters.get("properties")).get("command"))
        if command.get("type") == "string" and "enum" not in command:
            return name
    return None


def functions(tools: object) -> Iterator[tuple[str, JsonObject]]:
    """Yield the names and parameters of the offered functions."""
    for tool in items(tools):
        function = mapping(mapping(tool).get("function"))
        if isinstance(name := function.get("name"), str):
            yield name, mapping(function.get("parameters"))
