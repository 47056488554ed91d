"""Token ids of each prompt that a live engine is sent (token mode).

In: programs, the ids that may be used, a seed. A prompt is what it keeps of the previous turn's
context, which holds the ids that the engine really produced, then new ids drawn for this program
alone; a first prompt begins with its shared prefix, the same in every program that has it. So two
prompts have in common what `harness.replay.virtual.Contents` says, but for new ids that happen to
be equal.
The same program, vocabulary and seed give the same ids in whatever order turns are sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from harness.load.arrivals import rng_for
from traces import Program, Turn

Ids = NDArray[np.uint32]


class Conversation:
    """The context of one program: 4 bytes per token, for as long as it is under way."""

    def __init__(self, prefix: Ids, vocabulary: range, rng: Generator) -> None:
        self._context = prefix
        self._begun = False
        self._vocabulary = vocabulary
        self._rng = rng

    def prompt(self, turn: Turn) -> Ids:
        keeps = turn.kept_tokens if self._begun else turn.prompt_tokens - 1
        kept = self._context[:keeps]
        new = _draw(self._rng, self._vocabulary, turn.prompt_tokens - len(kept))
        self._context = np.concatenate([kept, new])
        self._begun = True
        return self._context

    def answered(self, ids: Sequence[int]) -> None:
        self._context = np.concatenate([self._context, np.array(ids, np.uint32)])


class Prompts:
    def __init__(self, programs: Sequence[Program], vocabulary: range, seed: int) -> None:
        if vocabulary.step != 1 or not 0 <= vocabulary.start < vocabulary.stop <= 2**32:
            raise ValueError(f"vocabulary {vocabulary}: give the token ids as range(first, last+1)")
        self._vocabulary = vocabulary
        self._seed = seed
        tokens: dict[str, int] = {}
        for program in programs:
            if (prefix := program.prefix) is not None:
                tokens[prefix.id] = max(prefix.tokens, tokens.get(prefix.id, 0))
        self._shared = {
            id: _draw(rng_for(seed, f"prefix {id}"), vocabulary, n) for id, n in tokens.items()
        }

    def conversation(self, program: Program) -> Conversation:
        prefix = program.prefix
        shared = np.empty(0, np.uint32) if prefix is None else self._shared[prefix.id]
        return Conversation(
            shared[: 0 if prefix is None else prefix.tokens],
            self._vocabulary,
            rng_for(self._seed, f"program {program.id}"),
        )


def _draw(rng: Generator, vocabulary: range, n: int) -> Ids:
    return rng.integers(vocabulary.start, vocabulary.stop, n, dtype=np.uint32)
