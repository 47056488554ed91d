"""The tree of contents of a replay in virtual time.

In: programs. Out: for each turn the path of its prompt and answer through segments, which turns
with equal beginnings share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from servers.sim import Path, Segment
from traces import Program, SharedPrefix, Turn
from traces.block_hashes import truncated


class Contents:
    """Places the tokens of turns in a tree, in which equal beginnings of contexts share segments.

    Programs share the segments of their common prefixes. The rest of a program is a separate
    branch, and a further one from each point at which it rewrote its history.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._prefixes: dict[str, Segment] = {}

    def paths(self, program: Program) -> Iterator[Path]:
        """Yield the path of each turn's prompt and answer, in order.

        Tokens that the next turn does not keep become a leaf beside the branch, so that a path has
        few segments even in a long program.
        """
        pieces: list[tuple[Segment, int]] = []
        """Segments of the branch, each with the token at which the path leaves it."""
        own = False
        """Whether the last segment belongs only to this program and still grows."""
        prefixes: tuple[SharedPrefix, ...] = () if program.prefix is None else (program.prefix,)
        for turn, following in zip_longest(program.turns, program.turns[1:]):
            keeps = turn.kept_tokens
            while pieces and keeps < pieces[-1][1]:
                segment, _ = pieces.pop()
                own = False
                if keeps > (pieces[-1][1] if pieces else 0):
                    pieces.append((segment, keeps))
            if prefixes := prefixes or turn.prefixes:
                shared, end = self._shared(prefixes, turn, following)
                beyond = [piece for piece in pieces if piece[1] > end]
                if beyond and beyond[0][0] is shared[-1][0]:
                    shared.pop()
                pieces = shared + beyond
                own = own and bool(beyond)
                prefixes = ()
            if not own:
                begins = pieces[-1][1] if pieces else 0
                pieces.append((Segment(begins // self._block), begins))
                own = True
            context = turn.prompt_tokens + turn.output_tokens
            kept = context if following is None else min(following.kept_tokens, context)
            kept = max(kept, pieces[-1][1])
            pieces[-1] = (pieces[-1][0], kept)
            leaf = [(Segment(kept // self._block), context)] if kept < context else []
            yield tuple([(segment, leave // self._block) for segment, leave in pieces + leaf])

    def _shared(
        self, prefixes: Sequence[SharedPrefix], turn: Turn, following: Turn | None
    ) -> tuple[list[tuple[Segment, int]], int]:
        """Return the segments of a context that are prefixes, and the token at which they end.

        The prefixes of the next prompt may include this turn's answer, which it repeats.
        """
        end = turn.prompt_tokens
        if following is not None and following.prefixes and prefixes[-1].tokens >= end:
            answered = min(following.kept_tokens, turn.context_tokens)
            if min(answered, following.prefixes[-1].tokens) > end:
                prefixes, end = following.prefixes, answered
        shared: list[tuple[Segment, int]] = []
        begins = 0
        for prefix in truncated(prefixes, end):
            start = begins // self._block
            segment = self._prefixes.setdefault(prefix.id, Segment(start))
            shared.append((segment, prefix.tokens))
            begins = prefix.tokens
        return shared, begins


class ProgramPaths:
    """The paths of one program in several trees of contents, each drawn when it is needed."""

    def __init__(self, trees: Sequence[Contents], program: Program) -> None:
        self._trees, self._program = trees, program
        self._drawn: dict[int, tuple[Iterator[Path], int, Path]] = {}
        """By tree: the further paths, and the latest with the number of its turn."""

    def of_turn(self, turn: int, tree: int) -> Path:
        """Return the path of a turn. With one tree, turns come in order of time."""
        drawn = self._drawn.get(tree)
        paths, latest, path = drawn or (self._trees[tree].paths(self._program), -1, ())
        while latest < turn:
            latest, path = latest + 1, next(paths)
        self._drawn[tree] = paths, latest, path
        return path
