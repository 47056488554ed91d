"""Draws jobs whose lengths a source states, instead of the statistics of a recipe.

In: numbers of turns and tokens, the number of jobs, an rng. Out: programs. Each length is a number,
or the smallest and the largest of a uniform distribution. Times are in seconds, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from traces.program import Program, Provenance, Turn

MAX_TURNS = 10_000
"""Of a session, and sessions of a job. Larger numbers would be mistakes, and exhaust the memory."""


def _ascending(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError("give a number, or the smallest and the largest of a range")
    return span


Length = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]
Span = Annotated[
    Annotated[Length, Tag("number")]
    | Annotated[tuple[Length, Length], AfterValidator(_ascending), Tag("range")],
    Discriminator(lambda span: "range" if isinstance(span, list | tuple) else "number"),
]


class ConversationShape(BaseModel):
    """A job of `sessions` conversations, one after the other, each of which begins anew."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: int = Field(ge=1, le=MAX_TURNS)
    """Of each session."""
    sessions: int = Field(default=1, ge=1, le=MAX_TURNS)
    first_prompt: Span
    new_tokens: Span
    """That a later prompt adds to the context of the turn before."""
    output_tokens: Span
    gap_s: Span = 0.0
    """From the end of a turn to the next one."""

    def draw(self, programs: int, seed: int, *, shared_tokens: int) -> list[Program]:
        """Return jobs without sub-agents. A session after the first keeps the `shared_tokens` that
        begin all prompts."""
        rng = np.random.default_rng(seed)
        width = max(4, len(str(programs - 1)))
        return [
            Program(
                f"conversation-{number:0{width}}",
                tuple(self._turns(rng, shared_tokens)),
                source="conversation of an experiment",
            )
            for number in range(programs)
        ]

    def _turns(self, rng: np.random.Generator, shared_tokens: int) -> Iterator[Turn]:
        for session in range(self.sessions):
            kept = shared_tokens if session else 0
            prompt = max(_whole(self.first_prompt, rng), kept + 1)
            for _ in range(self.turns):
                output = _whole(self.output_tokens, rng)
                gap_s = round(_drawn(self.gap_s, rng), 4)
                yield Turn(prompt, output, kept, ("tool",), None, gap_s, Provenance.SYNTHESISED)
                kept = prompt + output
                prompt = kept + _whole(self.new_tokens, rng)


def _whole(span: Span, rng: np.random.Generator) -> int:
    return max(1, round(_drawn(span, rng)))


def _drawn(span: Span, rng: np.random.Generator) -> float:
    return float(rng.uniform(*span)) if isinstance(span, tuple) else span
