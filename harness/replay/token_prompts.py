"""Token ids of each prompt that a live engine is sent (token mode).

In: programs, the ids that may be used, a seed. A prompt is made of its prefixes, then of what it
keeps of the previous turn's context, which holds the ids that the engine generated, then of new
ids, drawn for this program alone. A prefix has the same ids in every prompt that names it. So two
prompts share what `harness.replay.virtual.Contents` says, except for new ids that happen to be
equal, and for an answer inside a prefix, which is sent as the prefix has it and not as the engine
generated it. The same program, vocabulary and seed give the same ids in whatever order turns are
sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from harness.load.arrivals import rng_for
from traces import Program, SharedPrefix, Turn

Ids = NDArray[np.uint32]


class Conversation:
    """The context of one program: 4 bytes per token, for as long as it is in flight."""

    def __init__(self, program: Program, vocabulary: range, seed: int) -> None:
        self._vocabulary = vocabulary
        self._seed = seed
        self._rng = rng_for(seed, f"program {program.id}")
        self._context = self._shared(() if program.prefix is None else (program.prefix,))
        self._started = False

    def prompt(self, turn: Turn) -> Ids:
        keeps = turn.kept_tokens if self._started else turn.prompt_tokens - 1
        shared = self._shared(turn.prefixes)
        kept = np.concatenate([shared, self._context[len(shared) : max(keeps, len(shared))]])
        new = _draw(self._rng, self._vocabulary, turn.prompt_tokens - len(kept))
        self._context = np.concatenate([kept, new])
        self._started = True
        return self._context

    def answered(self, ids: Sequence[int]) -> None:
        self._context = np.concatenate([self._context, np.array(ids, np.uint32)])

    def _shared(self, prefixes: Sequence[SharedPrefix]) -> Ids:
        """Each prefix has a stream of its own, of which a prompt takes the first ids."""
        begins = [0, *(prefix.tokens for prefix in prefixes)]
        drawn = [
            _draw(rng_for(self._seed, f"prefix {p.id}"), self._vocabulary, p.tokens - begin)
            for p, begin in zip(prefixes, begins, strict=False)
        ]
        return np.concatenate([np.empty(0, np.uint32), *drawn])


class Prompts:
    def __init__(self, vocabulary: range, seed: int) -> None:
        if vocabulary.step != 1 or not 0 <= vocabulary.start < vocabulary.stop <= 2**32:
            raise ValueError(f"vocabulary {vocabulary}: give the token ids as range(first, last+1)")
        self._vocabulary = vocabulary
        self._seed = seed

    def conversation(self, program: Program) -> Conversation:
        return Conversation(program, self._vocabulary, self._seed)


def _draw(rng: Generator, vocabulary: range, n: int) -> Ids:
    return rng.integers(vocabulary.start, vocabulary.stop, n, dtype=np.uint32)
