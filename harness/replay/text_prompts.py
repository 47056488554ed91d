"""Messages of each prompt for a live engine (text mode).

Prompts contain the recorded messages verbatim. A prompt thus repeats the recorded answers and not
those of this engine, so cache hits end where the two differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.basics.errors import InvalidInput
from traces import Message, Program, Turn


class RecordedConversation:
    """The conversation of one program."""

    def __init__(self, program: Program) -> None:
        self._messages = program.messages
        self._ends = iter(program.prompt_messages)

    def prompt(self, _turn: Turn) -> Sequence[Message]:
        return self._messages[: next(self._ends)]

    def answered(self, _ids: Sequence[int]) -> None:
        """Ignore the engine's answer."""


class TextPrompts:
    def __init__(self, programs: Sequence[Program]) -> None:
        if program := next((p for p in programs if not p.messages), None):
            raise InvalidInput(
                f"program {program.id}: its trace has no messages; remove --prompts text"
            )

    def conversation(self, program: Program) -> RecordedConversation:
        return RecordedConversation(program)
