"""The programs of a gateway, with their turn numbers, tool gaps and kept tokens.

Times in seconds on the caller's clock, lengths in tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, NamedTuple

from harness.gateway.answers import ForwardedAnswer
from harness.gateway.client_request import Caller
from harness.gateway.conversations import Conversations, DigestedPrompt, with_answer

MAX_PROGRAMS = 100_000
"""Limit of the programs in memory, because not every client reports the end of a program."""

MAX_SIDES = 100
"""The most conversations of a program, apart from the first, that are distinguished."""


@dataclass(slots=True)
class GatewayProgram:
    id: str
    job_id: str
    named: bool
    """Whether its requests contain its id; others are recognized by their conversations."""
    replica: int = 0
    """The server of its last turn."""
    model: Any = None
    """The model of its last request."""
    turns: int = 0
    active_turns: int = 0
    finished_s: float | None = None
    """End of its last turn."""
    prompt: DigestedPrompt | None = None
    """Prompt of the last turn that succeeded, followed by its answer."""
    prompt_pieces: int = 0
    """Pieces of that prompt without the answer."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    reasoned: bool = False
    system: bytes = b""
    """Digest of the system prompt of its first turn."""
    sides: dict[bytes, str] = field(default_factory=dict)
    """The programs of other conversations with its id, by the digests of their system prompts."""


class StartedTurn(NamedTuple):
    program: GatewayProgram
    turn: int
    gap_s: float
    """Time since the last turn ended; 0 for a first turn, and if another turn is active."""


class GatewayPrograms:
    def __init__(self) -> None:
        self._programs: OrderedDict[str, GatewayProgram] = OrderedDict()
        """Ordered by the time of the last request."""
        self._conversations = Conversations()
        self._unnamed = 0

    def start_turn(self, caller: Caller, prompt: DigestedPrompt, now_s: float) -> StartedTurn:
        id = caller.program_id or self._conversations.find(prompt, self._idle) or self._new_id()
        job_id = caller.job_id or id
        if not caller.is_agent and (side := self._side(id, prompt)) is not None:
            id = side
        program = self._programs.get(id)
        if program is None:
            named = caller.program_id is not None
            program = GatewayProgram(id, self._job_of(job_id), named, system=prompt.system_digest)
            self._programs[id] = program
        self._programs.move_to_end(id)
        waited = not program.active_turns and program.finished_s is not None
        gap_s = max(0.0, now_s - (program.finished_s or 0.0)) if waited else 0.0
        started = StartedTurn(program, program.turns, gap_s)
        program.turns += 1
        program.active_turns += 1
        if not program.named:
            self._conversations.remember(id, prompt)
        return started

    def _side(self, id: str, prompt: DigestedPrompt) -> str | None:
        """Return the program of the job for a conversation with another system prompt, such as one
        that finds a title for the session. Clients send these with the id of the main one."""
        main, system = self._programs.get(id), prompt.system_digest
        if main is None or not main.system or not system or system == main.system:
            return None
        if system not in main.sides and prompt.begins and len(main.sides) < MAX_SIDES:
            others = (f"{id}#{number}" for number in count(len(main.sides) + 2))
            taken = main.sides.values()
            main.sides[system] = next(o for o in others if o not in self and o not in taken)
        return main.sides.get(system)

    def kept_tokens(
        self, program: GatewayProgram, prompt: DigestedPrompt, prompt_tokens: int
    ) -> int:
        """Return the number of prompt tokens that repeat the last turn's context.

        The number follows from the equal messages; if the program rewrote its history, from their
        share of its characters (docs/reference/trace-formats.md).
        """
        before = program.prompt
        if before is None:
            return 0
        common, limit = before.shared(prompt), prompt_tokens - 1
        if common >= len(before) and not program.reasoned:
            return min(program.prompt_tokens + program.output_tokens, limit)
        if common >= program.prompt_pieces:
            return min(program.prompt_tokens, limit)
        if not common:
            return 0
        share = before.ends[common - 1] / before.ends[program.prompt_pieces - 1]
        return min(int(share * program.prompt_tokens), limit)

    def record_answer(
        self, program: GatewayProgram, prompt: DigestedPrompt, answer: ForwardedAnswer
    ) -> None:
        """Store the turn's context for the comparison with the next prompt."""
        program.prompt = with_answer(prompt, answer.message())
        program.prompt_pieces = len(prompt)
        program.prompt_tokens, program.output_tokens = answer.prompt_tokens, answer.output_tokens
        program.reasoned = answer.reasoned
        if not program.named:
            self._conversations.remember(program.id, program.prompt)

    def end_turn(self, program: GatewayProgram, now_s: float) -> None:
        program.active_turns -= 1
        program.finished_s = now_s

    def __contains__(self, program_id: str) -> bool:
        return program_id in self._programs

    def ids(self) -> list[str]:
        return list(self._programs)

    def remove(self, program_id: str) -> GatewayProgram | None:
        return self._programs.pop(program_id, None)

    def evict(self, limit: int = MAX_PROGRAMS) -> Iterator[GatewayProgram]:
        """Remove and yield the least recently active programs beyond the limit. Programs with an
        active turn stay."""
        for id in list(islice(self._programs, max(0, len(self._programs) - limit))):
            if self._programs[id].active_turns:
                self._programs.move_to_end(id)
            elif (program := self.remove(id)) is not None:
                yield program

    def _job_of(self, program_id: str) -> str:
        """Return the job of a program: clients may name the parent of a sub-agent as its job."""
        parent = self._programs.get(program_id)
        return program_id if parent is None else parent.job_id

    def _idle(self, program_id: str) -> bool:
        program = self._programs.get(program_id)
        return program is not None and not program.active_turns

    def _new_id(self) -> str:
        self._unnamed += 1
        return f"program-{self._unnamed}"
