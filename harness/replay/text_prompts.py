"""Messages of each prompt that a live engine is sent (text mode): as recorded, verbatim.

So a next prompt holds the recorded answers, not those that this engine gave; hits end where the
recorded conversation and its own part.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.errors import InvalidInput
from traces import Message, Program, Turn


class RecordedConversation:
    """The conversation of one program."""

    def __init__(self, program: Program) -> None:
        self._messages = program.messages
        self._ends = iter(program.prompt_messages)

    def prompt(self, _turn: Turn) -> Sequence[Message]:
        return self._messages[: next(self._ends)]

    def answered(self, _ids: Sequence[int]) -> None:
        """What it said is not sent again."""


class TextPrompts:
    def __init__(self, programs: Sequence[Program]) -> None:
        if silent := next((p for p in programs if not p.messages), None):
            raise InvalidInput(
                f"program {silent.id}: its trace has no messages; leave --prompts text away"
            )

    def conversation(self, program: Program) -> RecordedConversation:
        return RecordedConversation(program)
