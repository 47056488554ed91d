"""The programs of one engine, and the conversations that each consists of.

In: turns when they arrive and end. Out: the conversation of each turn, which policies see as the
turn's program, and the programs that have ended.

A program is one conversation if its client marks turns with `is_last`. Otherwise it may send side
requests too (a title, a summary, a sub-agent under the same id). A request that does not repeat the
prompt of an earlier one then begins a conversation of its own, which neither uses nor releases the
pins of the others (docs/design/vllm-plugin.md).

Standard library only, since vLLM loads this module.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

MAX_PROGRAMS = 100_000
"""Limit of the programs in memory, because not every client reports the end of a program."""
MAX_CONVERSATIONS = 8
"""Limit of the conversations of a program."""
MIN_TAIL_TOKENS, MAX_TAIL_TOKENS = 16, 80
"""Limits of the eighth at the end of a prompt that the next prompt need not repeat. Chat templates
end a prompt with the beginning of the answer, such as an empty `<think>` block, and AIPerf draws
the last incomplete block of 64 tokens anew when it replays hashes of blocks."""


class PromptStart(NamedTuple):
    """The blocks at the start of a prompt that later turns of its conversation repeat."""

    blocks: int
    content: Any
    """The engine's description of these blocks."""


def blocks_to_repeat(prompt_tokens: int, block_tokens: int) -> int:
    """Return the number of full blocks that the next prompt of a conversation repeats."""
    tail = min(max(prompt_tokens // 8, MIN_TAIL_TOKENS), MAX_TAIL_TOKENS)
    return max(0, prompt_tokens - tail) // block_tokens


class Conversation:
    __slots__ = ("active_turns", "id", "prompt", "turns")

    def __init__(self, id: str) -> None:
        self.id = id
        """The program's id for the first conversation, else a new one that begins with it."""
        self.turns = 0
        self.active_turns = 0
        self.prompt: PromptStart | None = None
        """Of the latest turn; None if the client marks turns."""


class EngineProgram:
    __slots__ = ("arrival_s", "begun", "conversations")

    def __init__(self, id: str, arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.conversations = [Conversation(id)]
        """In order of their latest arrivals."""
        self.begun = 1
        """Number of conversations that it has begun."""

    @property
    def is_idle(self) -> bool:
        return not any(conversation.active_turns for conversation in self.conversations)

    def conversation_of(
        self, prompt: PromptStart | None, repeats: Callable[[PromptStart], bool]
    ) -> Conversation | None:
        """Return the conversation that a turn continues: the one with the longest prompt that it
        repeats; None if there is none. `prompt`: None if the client marks turns."""
        best: Conversation | None = None
        longest = -1
        for conversation in self.conversations:
            start = conversation.prompt
            blocks = 0 if prompt is None or start is None else start.blocks
            if blocks > longest and (not blocks or (start is not None and repeats(start))):
                best, longest = conversation, blocks
        return best


class EnginePrograms:
    def __init__(
        self, max_programs: int, idle_s: float, on_end: Callable[[float], None] | None = None
    ) -> None:
        """`idle_s`: a program without turns for longer than this has ended. `on_end`: called with
        the seconds from the arrival of an ended program's first turn to the end of its last."""
        self._max_programs = max_programs
        self._idle_s = idle_s
        self._on_end = on_end
        self._programs: dict[str, EngineProgram] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()
        """Programs without active turns, with the ends of their last turns, in this order."""

    def __len__(self) -> int:
        return len(self._programs)

    def turn_arrived(
        self,
        program_id: str,
        arrival_s: float,
        prompt: PromptStart | None,
        repeats: Callable[[PromptStart], bool],
    ) -> tuple[EngineProgram, Conversation]:
        program = self._programs.get(program_id)
        if program is None:
            program = self._programs[program_id] = EngineProgram(program_id, arrival_s)
        self._idle.pop(program_id, None)
        conversation = program.conversation_of(prompt, repeats)
        if conversation is None:
            program.begun += 1
            conversation = Conversation(f"{program_id}#{program.begun}")
            program.conversations.append(conversation)
        if prompt is not None:
            conversation.prompt = prompt
        if len(program.conversations) > 1:
            program.conversations.remove(conversation)
            program.conversations.append(conversation)
        conversation.turns += 1
        conversation.active_turns += 1
        return program, conversation

    def turn_ended(self, program_id: str, conversation_id: str, now_s: float) -> bool:
        """Return whether the turn's conversation continues; its program may have ended since."""
        program = self._programs.get(program_id)
        if program is None:
            return False
        goes_on = False
        for conversation in program.conversations:
            if conversation.id == conversation_id and conversation.active_turns:
                conversation.active_turns -= 1
                goes_on = True
        if program.is_idle:
            self._idle[program_id] = now_s
            self._idle.move_to_end(program_id)
        return goes_on

    def end(self, program_id: str, *, counts: bool = True) -> list[str]:
        """End the program; return its conversations. `counts`: whether its requests belong to a
        program, so that its end is reported."""
        ended_s = self._idle.pop(program_id, None)
        program = self._programs.pop(program_id, None)
        if program is None:
            return []
        if self._on_end is not None and ended_s is not None and counts:
            self._on_end(ended_s - program.arrival_s)
        return [one.id for one in program.conversations]

    def end_oldest(self, program: EngineProgram, now_s: float) -> list[str]:
        """Return the conversations to end: the oldest idle ones of `program` if it has too many,
        and all of the programs that have been idle for longest, if there are too many or they have
        been idle for too long."""
        ended: list[str] = []
        while len(program.conversations) > MAX_CONVERSATIONS:
            idle = [one for one in program.conversations if not one.active_turns]
            if not idle:
                break
            program.conversations.remove(idle[0])
            ended.append(idle[0].id)
        while self._idle:
            oldest = next(iter(self._idle))
            recent = now_s - self._idle[oldest] <= self._idle_s
            if recent and len(self._programs) <= self._max_programs:
                break
            ended += self.end(oldest)
        return ended
