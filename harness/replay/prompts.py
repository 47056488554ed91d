"""Token ids (token mode) or messages (text mode) of each prompt for a live engine.

In: programs, a vocabulary, a seed. Out: prompts. A prompt consists of its prefixes, the kept part
of the previous turn's context, with the ids that the engine generated, and new random ids. A prefix
has the same ids in all prompts that contain it. Two prompts thus share the same tokens as in
`harness.replay.contents.Contents`, except for new ids that are equal by chance, and for an answer
inside a prefix, where the prefix's ids replace the generated ones. The ids depend on the program,
the vocabulary and the seed, and not on the order in which turns are sent.

In text mode prompts repeat the recorded answers, not this engine's, so cache hits end
where the two differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from harness.load.arrivals import rng_for
from servers.basics.errors import InvalidInput
from traces import Message, Program, SharedPrefix, Turn


class RecordedConversation:
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


Ids = NDArray[np.uint32]


class TokenConversation:
    """The context of one active program. Takes 4 bytes per token."""

    def __init__(self, program: Program, vocabulary: range, seed: int) -> None:
        self._vocabulary = vocabulary
        self._seed = seed
        self._rng = rng_for(seed, f"program {program.id}")
        self._context = self._shared(() if program.prefix is None else (program.prefix,))
        self._started = False

    def prompt(self, turn: Turn) -> Ids:
        kept_tokens = turn.kept_tokens if self._started else turn.prompt_tokens - 1
        shared = self._shared(turn.prefixes)
        kept = np.concatenate([shared, self._context[len(shared) : max(kept_tokens, len(shared))]])
        new = _draw(self._rng, self._vocabulary, turn.prompt_tokens - len(kept))
        self._context = np.concatenate([kept, new])
        self._started = True
        return self._context

    def answered(self, ids: Sequence[int]) -> None:
        self._context = np.concatenate([self._context, np.array(ids, np.uint32)])

    def _shared(self, prefixes: Sequence[SharedPrefix]) -> Ids:
        """Draw each prefix from its own random stream. A prompt uses the first ids of it."""
        starts = [0, *(prefix.tokens for prefix in prefixes)]
        drawn = [
            _draw(rng_for(self._seed, f"prefix {p.id}"), self._vocabulary, p.tokens - start)
            for p, start in zip(prefixes, starts, strict=False)
        ]
        return np.concatenate([np.empty(0, np.uint32), *drawn])


class TokenPrompts:
    def __init__(self, vocabulary: range, seed: int) -> None:
        if vocabulary.step != 1 or not 0 <= vocabulary.start < vocabulary.stop <= 2**32:
            raise ValueError(f"vocabulary {vocabulary}: must be range(first id, last id + 1)")
        self._vocabulary = vocabulary
        self._seed = seed

    def conversation(self, program: Program) -> TokenConversation:
        return TokenConversation(program, self._vocabulary, self._seed)


def _draw(rng: Generator, vocabulary: range, n: int) -> Ids:
    return rng.integers(vocabulary.start, vocabulary.stop, n, dtype=np.uint32)
