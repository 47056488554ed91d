"""The turns of programs under way, as a proxy sees them: numbers, tool gaps, what a prompt keeps.

Times in seconds on the caller's clock, lengths in tokens.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from harness.gateway.answers import Answer
from harness.gateway.conversations import Conversations, Prompt, with_answer
from harness.gateway.identity import Said

MOST_PROGRAMS = 100_000
"""Not every client says that a program has ended; as policies do
(`servers.policies.estimates.recent`)."""


@dataclass(slots=True)
class Program:
    id: str
    job_id: str
    named: bool
    """It says who it is; others are known by their conversations."""
    replica: int = 0
    """The server of its last turn."""
    model: Any = None
    """That it asked last."""
    turns: int = 0
    under_way: int = 0
    finished_s: float | None = None
    """End of its last turn."""
    prompt: Prompt | None = None
    """Of the last turn that succeeded, and its answer."""
    prompt_pieces: int = 0
    """Pieces of that prompt without the answer."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    reasoned: bool = False


class StartedTurn(NamedTuple):
    program: Program
    turn: int
    gap_s: float
    """Since the last turn ended; 0 in a first turn, and while another is under way."""


class Programs:
    def __init__(self) -> None:
        self._programs: OrderedDict[str, Program] = OrderedDict()
        """The one heard of last is last."""
        self._of_job: Counter[str] = Counter()
        self._conversations = Conversations()
        self._unnamed = 0

    def begin(self, said: Said, prompt: Prompt, now_s: float) -> StartedTurn:
        id = said.program_id or self._conversations.find(prompt, self._idle) or self._new_id()
        program = self._programs.get(id)
        if program is None:
            named = said.program_id is not None
            program = self._programs[id] = Program(id, said.job_id or id, named)
            self._of_job[program.job_id] += 1
        self._programs.move_to_end(id)
        waited = not program.under_way and program.finished_s is not None
        gap_s = max(0.0, now_s - (program.finished_s or 0.0)) if waited else 0.0
        begun = StartedTurn(program, program.turns, gap_s)
        program.turns += 1
        program.under_way += 1
        if not program.named:
            self._conversations.keep(id, prompt)
        return begun

    def kept_tokens(self, program: Program, prompt: Prompt, prompt_tokens: int) -> int:
        """Of a prompt, what repeats the last turn's context. Inferred from the messages that are
        the same; of a rewritten history the share of its characters
        (docs/reference/trace-formats.md)."""
        before = program.prompt
        if before is None:
            return 0
        common, most = before.shared(prompt), prompt_tokens - 1
        if common >= len(before) and not program.reasoned:
            return min(program.prompt_tokens + program.output_tokens, most)
        if common >= program.prompt_pieces:
            return min(program.prompt_tokens, most)
        if not common:
            return 0
        share = before.ends[common - 1] / before.ends[program.prompt_pieces - 1]
        return min(int(share * program.prompt_tokens), most)

    def answered(self, program: Program, prompt: Prompt, answer: Answer) -> None:
        """For what its next prompt keeps, and to know it again."""
        program.prompt = with_answer(prompt, answer.message())
        program.prompt_pieces = len(prompt)
        program.prompt_tokens, program.output_tokens = answer.prompt_tokens, answer.output_tokens
        program.reasoned = answer.reasoned
        if not program.named:
            self._conversations.keep(program.id, program.prompt)

    def over(self, program: Program, now_s: float) -> None:
        """A turn of it has ended."""
        program.under_way -= 1
        program.finished_s = now_s

    def ids(self) -> list[str]:
        return list(self._programs)

    def ended(self, program_id: str) -> Program | None:
        """Nothing more comes from it."""
        program = self._programs.pop(program_id, None)
        if program is not None:
            self._of_job[program.job_id] -= 1
            if not self._of_job[program.job_id]:
                del self._of_job[program.job_id]
        return program

    def forgotten(self, most: int = MOST_PROGRAMS) -> Iterator[Program]:
        """Of more than so many, those without a turn under way that were heard of longest ago: they
        are no longer known."""
        for id in list(islice(self._programs, max(0, len(self._programs) - most))):
            if self._programs[id].under_way:
                self._programs.move_to_end(id)
            elif (program := self.ended(id)) is not None:
                yield program

    def has_job(self, job_id: str) -> bool:
        """Whether a program of it is known."""
        return job_id in self._of_job

    def _idle(self, program_id: str) -> bool:
        program = self._programs.get(program_id)
        return program is not None and not program.under_way

    def _new_id(self) -> str:
        self._unnamed += 1
        return f"program-{self._unnamed}"
