"""Determines which tokens of prompts are equal, and numbers their blocks.

In: programs, with `Turn.kept_tokens` and prefixes. Out: for each prompt its *runs*, and from them
the ids of its blocks of tokens. Two prompts have the same ids up to a block if and only if they
have the same tokens up to the end of that block. This is the inverse of `traces.block_hashes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traces.block_hashes import common_blocks, kept_tokens, truncated
from traces.lenient import Repairs
from traces.program import Program

Source = tuple[str, ...]
"""The source of tokens: a shared prefix, the new part of a prompt, or an answer."""
Runs = tuple[tuple[Source, int], ...]
"""The sources of a prompt's tokens in order, each with the token at which it ends. Tokens of the
same source at the same place of a prompt are equal."""


PREFIX, NEW, ANSWER = "prefix", "new", "answer"
Block = tuple[int, Runs]
"""The id of the previous block, and the runs of a block."""


def prompts(program: Program) -> Iterator[Runs]:
    """Yield the runs of each prompt of a program."""
    context: Runs = ()
    for number, turn in enumerate(program.turns):
        path = turn.prefixes if number else program.first_prefixes
        shared = truncated(path, turn.prompt_tokens)
        runs = _extended(
            tuple(((PREFIX, prefix.id), prefix.tokens) for prefix in shared),
            first_tokens(context, turn.kept_tokens),
        )
        prompt = _extended(runs, (((NEW, program.id, str(number)), turn.prompt_tokens),))
        yield prompt
        context = (*prompt, ((ANSWER, program.id, str(number)), turn.context_tokens))


def first_tokens(runs: Runs, tokens: int) -> Runs:
    """Return the runs of the first `tokens` tokens."""
    result: list[tuple[Source, int]] = []
    begin = 0
    for source, end in runs:
        if begin >= tokens:
            break
        result.append((source, min(end, tokens)))
        begin = end
    return tuple(result)


def _extended(runs: Runs, others: Runs) -> Runs:
    """Return the runs, followed by the other runs that end later."""
    end = runs[-1][1] if runs else 0
    beyond = [run for run in others if run[1] > end]
    if runs and beyond and beyond[0][0] == runs[-1][0]:
        runs = runs[:-1]
    return (*runs, *beyond)


def common_tokens(a: Runs, b: Runs) -> int:
    """Return the number of equal leading tokens."""
    end = 0
    for (source, a_end), (other, b_end) in zip(a, b, strict=False):
        if source != other:
            break
        end = min(a_end, b_end)
        if a_end != b_end:
            break
    return end


class BlockIds:
    """Numbers blocks of tokens in the order in which they first occur."""

    def __init__(self, block_tokens: int, *, partial: bool) -> None:
        """`partial`: whether the last block of a prompt counts if it is not full. Its id differs
        from the id of the full block."""
        self._block = block_tokens
        self._partial = partial
        self._shared: dict[Block, int] = {}
        """Blocks of shared prefixes only."""
        self._count = 0

    def of(self, program: Program) -> Iterator[list[int]]:
        """Yield the ids of the blocks of each prompt."""
        own: dict[Block, int] = {}
        before: Runs = ()
        ids: list[int] = []
        for runs in prompts(program):
            equal = common_tokens(before, runs) // self._block
            ids = ids[:equal]
            for pieces in self._blocks(runs, equal * self._block):
                ids.append(self._id((ids[-1] if ids else -1, pieces), own))
            yield ids
            before = runs

    def _id(self, block: Block, own: dict[Block, int]) -> int:
        is_shared = all(source[0] == PREFIX for source, _ in block[1])
        known = self._shared if is_shared else own
        if block not in known:
            known[block] = self._count
            self._count += 1
        return known[block]

    def _blocks(self, runs: Runs, begin: int) -> Iterator[Runs]:
        """Yield the runs of each block that begins at this token of a prompt or later."""
        prompt = runs[-1][1]
        index = 0
        while begin + (0 if self._partial else self._block - 1) < prompt:
            end = min(begin + self._block, prompt)
            while runs[index][1] <= begin:
                index += 1
            pieces = []
            while runs[index][1] < end:
                pieces.append(runs[index])
                index += 1
            yield (*pieces, (runs[index][0], end))
            begin = end


def add_block_losses(
    program: Program, ids: Sequence[Sequence[int]], block_tokens: int, losses: Repairs
) -> None:
    """Report where the ids of a program's prompts are inexact."""
    for number, turn in enumerate(program.turns):
        shared = turn.prefixes if number else program.first_prefixes
        if any(prefix.tokens % block_tokens for prefix in shared):
            losses.add(
                f"hash ids stand for whole blocks of {block_tokens} tokens: what a prompt shares "
                "with other programs is rounded down to them"
            )
    full = [turn.prompt_tokens // block_tokens for turn in program.turns]
    for (i, before), turn in zip(enumerate(program.turns), program.turns[1:], strict=False):
        common = common_blocks(ids[i][: full[i]], ids[i + 1][: full[i + 1]])
        read = kept_tokens(
            before.prompt_tokens, before.output_tokens, turn.prompt_tokens, common, block_tokens
        )
        if read != turn.kept_tokens:
            losses.add(
                f"hash ids stand for whole blocks of {block_tokens} tokens and not for answers: "
                "how much a prompt repeats of the context before is read as somewhat less or more"
            )
