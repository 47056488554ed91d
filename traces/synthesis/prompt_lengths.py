"""Computes the length of each prompt of drawn programs, and how much it repeats.

In: a program's drawn steps. Out: lengths in tokens. An agent appends to its context, omits an
answer, edits the end, or rewrites its history (compaction, or a changed beginning), which makes
everything after it new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from traces.synthesis.fitted import Cases, ProgramKind

CASES = tuple(Cases.model_fields)
APPENDED, ANSWER_DROPPED, EDITED, REWRITTEN = range(len(CASES))
"""Indices of CASES."""
MAX_ROUNDS = 3
"""A smaller scale can change which context is the longest, so it is computed again."""


class PromptLength(NamedTuple):
    tokens: int
    kept: int
    """Tokens of the previous context that it repeats."""


class ProgramSteps(NamedTuple):
    """The steps of a program, in order. Each list has a value for every step, even if unused."""

    tools: list[tuple[str, ...]]
    output: list[int]
    gap_s: list[float]
    case: list[int]
    new: list[float]
    """New tokens of the next prompt, unless its history is rewritten."""
    edited_lost: list[int]
    rewritten_kept: list[int]
    rewritten_ratio: list[float]
    compacted_ratio: list[float]
    """The same for a compaction."""

    def between(self, start: int, end: int) -> ProgramSteps:
        """Return a slice of the steps."""
        return ProgramSteps._make(values[start:end] for values in self)


def prompts(
    kind: ProgramKind, first: int, outputs: Sequence[int], limit: float, steps: ProgramSteps
) -> list[PromptLength]:
    """Return the prompts of a program that begins with `first` tokens. If a context would exceed
    the limit, the history is compacted, or else all new tokens are scaled."""
    if kind.history.compacted_prompt_ratio is not None:
        return _prompts(first, outputs, steps, limit, compacts=True)
    scale, result = 1.0, _prompts(first, outputs, steps, limit)
    for _ in range(MAX_ROUNDS):
        longest = max(p.tokens + output for p, output in zip(result, outputs, strict=True))
        if longest <= limit or scale == 0:
            break
        scale = max(scale - (longest - limit) / max(sum(steps.new), 1), 0.0)
        result = _prompts(first, outputs, steps, limit, scale=scale)
    return result


def _prompts(
    first: int,
    outputs: Sequence[int],
    steps: ProgramSteps,
    limit: float,
    *,
    compacts: bool = False,
    scale: float = 1.0,
) -> list[PromptLength]:
    prompt = PromptLength(first, 0)
    result = [prompt]
    for number, case in enumerate(steps.case):
        context = prompt.tokens + outputs[number]
        if case == REWRITTEN:
            length = min(context * steps.rewritten_ratio[number], max(context, limit))
            after = _rewritten(context, length, steps.rewritten_kept[number])
        else:
            kept = context
            if case == ANSWER_DROPPED:
                kept = prompt.tokens
            elif case == EDITED:
                kept = max(context - steps.edited_lost[number], 0)
            after = PromptLength(kept + max(round(steps.new[number] * scale), 1), kept)
        if compacts and after.tokens + outputs[number + 1] > limit:
            length = context * steps.compacted_ratio[number]
            after = _rewritten(context, length, steps.rewritten_kept[number])
        result.append(after)
        prompt = after
    return result


def _rewritten(context: int, length: float, kept: int) -> PromptLength:
    tokens = max(round(length), 1)
    return PromptLength(tokens, min(kept, tokens - 1, context))
