"""Builds the program of one agent from its messages and calls, added in order."""

from __future__ import annotations

from collections.abc import Iterable

from traces.assumptions import Gap
from traces.formats.shared.balance import balance
from traces.formats.shared.calls import Call, make_turn, system_prefix
from traces.lenient import Repairs
from traces.program import Message, Program

ROLES = ("system", "user", "assistant")


class Transcript:
    """The messages and the calls of one agent, added in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.messages: list[Message] = []
        self.system = ""
        """The system prompt, if it is not the first message."""
        self.characters = 0

    def say(self, role: str, content: str, call: Call | None = None, further: int = 0) -> None:
        """Add a message, and the call that it answers. Roles that chat templates may
        lack become `user`. `further`: the number of characters in prompts in addition to the
        content."""
        length = len(content) + further
        if call is not None:
            call.opening, call.prompt_messages = self.characters, len(self.messages)
            call.characters = length
            self.calls.append(call)
        self.messages.append(Message(role if role in ROLES else "user", content))
        self.characters += length

    def program(
        self, id: str, gaps: Iterable[Gap], repairs: Repairs, start_s: float | None = None
    ) -> Program:
        """Return the program. `gaps` has the gap after each call."""
        balanced = balance(self.calls, list(gaps), repairs)
        turns = tuple(make_turn(self.calls, i, gap, repairs) for i, gap in enumerate(balanced))
        first = self.messages[0]
        system = self.system or (first.content if first.role == "system" else "")
        shortest = min(turn.prompt_tokens for turn in turns)
        return Program(
            id,
            turns,
            system_prefix(system, self.calls[0].opening, shortest),
            recorded_start_s=start_s,
            messages=tuple(self.messages),
            prompt_messages=tuple(call.prompt_messages for call in self.calls),
        )
