"""Computes how much of the prompts an infinite cache could hold.

In: programs in the order of the list. Out: prompt tokens by what they repeat. It is an upper bound:
KV never leaves the cache, and a prompt is computed before the next one that shares it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from traces.program import Program, SharedPrefix


class SharedPrompts:
    """The prefixes of the prompts so far, for comparison with later ones."""

    def __init__(self) -> None:
        self._longest: dict[str, int] = {}

    def add(self, prefixes: Sequence[SharedPrefix]) -> int:
        """Add a prompt's prefixes. Return how many tokens it shares with earlier prompts."""
        longest = self._longest
        shared = max((min(p.tokens, longest.get(p.id, 0)) for p in prefixes), default=0)
        for prefix in prefixes:
            longest[prefix.id] = max(prefix.tokens, longest.get(prefix.id, 0))
        return shared


class Reuse(NamedTuple):
    """Prompt tokens."""

    previous_turn: int
    """Tokens that repeat the context of the program's previous turn."""
    other_prompts: int
    """Tokens that repeat only earlier prompts, such as a system prompt of other programs."""
    new: int

    @property
    def bound(self) -> float:
        """The highest hit ratio."""
        return (self.previous_turn + self.other_prompts) / max(sum(self), 1)


def reuse(programs: Sequence[Program]) -> Reuse:
    previous = other = prompts = 0
    earlier = SharedPrompts()
    for program in programs:
        for number, turn in enumerate(program.turns):
            shared = earlier.add(turn.prefixes if number else program.first_prefixes)
            prompts += turn.prompt_tokens
            previous += turn.kept_tokens
            other += max(shared - turn.kept_tokens, 0)
    return Reuse(previous, other, prompts - previous - other)
