"""What prompts share, worked out from the hashes of their blocks of tokens.

In: for each prompt the hashes of its full blocks, in order; two prompts with the same hashes up to
a block have the same tokens up to there. Out: `Turn.kept_tokens` and `Turn.prefixes`. Lengths are
in tokens, depths in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from traces.program import Program, SharedPrefix, Turn

Hashes = Sequence[Hashable]
Path = list[tuple[int, int]]
"""Lines of the tree that a prompt follows, each with the depth at which the prompt leaves it."""


def common_blocks(a: Sequence[object], b: Sequence[object]) -> int:
    """How many leading hashes are the same."""
    for depth, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return depth
    return min(len(a), len(b))


def kept_tokens(
    before_tokens: int, output_tokens: int, prompt_tokens: int, common: int | None, block: int
) -> int:
    """What a prompt repeats of the previous prompt, `before_tokens` long, and of its output.

    `common` is the number of blocks that both prompts begin with; None if it is not recorded, and
    then the prompt is taken to repeat the whole previous one. A prompt that repeats all blocks of
    the previous one repeats its output too if it is long enough for that. If it is not, the agent
    rewrote the output (it dropped the model's reasoning).
    """
    all_repeated = common is None or common == before_tokens // block
    if all_repeated and prompt_tokens > before_tokens + output_tokens:
        return before_tokens + output_tokens
    if all_repeated and prompt_tokens > before_tokens:
        return before_tokens
    return min((common or 0) * block, prompt_tokens - 1)


def share_blocks(
    programs: Sequence[Program], hashes: Mapping[str, Sequence[Hashes]], block_tokens: int
) -> list[Program]:
    """The programs, with `kept_tokens` and `prefixes` set to what the hashes of their prompts say.

    `hashes` holds, by program id, a list of block hashes for each turn. Hashes beyond a prompt's
    full blocks are ignored.
    """
    full = {
        program.id: [
            own[: turn.prompt_tokens // block_tokens]
            for own, turn in zip(hashes[program.id], program.turns, strict=True)
        ]
        for program in programs
    }
    tree = _PrefixTree()
    for program in programs:
        tree.begin_branch()
        for before, own in zip([(), *full[program.id]], full[program.id], strict=False):
            if common_blocks(before, own) < len(before):
                tree.begin_branch()
            tree.add(own)
    paths = iter(tree.shared_paths())
    scope = programs[0].id if programs else ""
    made = []
    for program in programs:
        turns = [
            replace(turn, kept_tokens=kept, prefixes=_prefixes(next(paths), scope, block_tokens))
            for turn, kept in zip(
                program.turns, _all_kept(program.turns, full[program.id], block_tokens), strict=True
            )
        ]
        made.append(replace(program, turns=extend_prefixes(turns)))
    return made


def _all_kept(turns: Sequence[Turn], hashes: Sequence[Hashes], block: int) -> list[int]:
    kept = [0] * len(turns)
    for i in range(1, len(turns)):
        before, common = turns[i - 1], common_blocks(hashes[i - 1], hashes[i])
        kept[i] = kept_tokens(
            before.prompt_tokens, before.output_tokens, turns[i].prompt_tokens, common, block
        )
    return kept


def _prefixes(path: Path, scope: str, block: int) -> tuple[SharedPrefix, ...]:
    return tuple(SharedPrefix(f"{scope}:{line}", depth * block) for line, depth in path)


def extend_prefixes(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Let each prompt that the next one repeats name the prefixes of the next one to its own end.

    A hash covers full blocks only. The tokens after the last full block of a prompt are known to be
    in a prefix once the next prompt, which repeats them, is.
    """
    made = list(turns)
    for i in range(len(made) - 2, -1, -1):
        now, following = made[i], made[i + 1]
        reached = now.prefixes[-1].tokens if now.prefixes else 0
        longer = truncated(following.prefixes, min(following.kept_tokens, now.prompt_tokens))
        if longer and longer[-1].tokens > reached and truncated(longer, reached) == now.prefixes:
            made[i] = replace(now, prefixes=longer)
    return tuple(made)


def truncated(prefixes: Sequence[SharedPrefix], tokens: int) -> tuple[SharedPrefix, ...]:
    """The path to at most so many tokens."""
    made = []
    begins = 0
    for prefix in prefixes:
        if begins >= tokens:
            break
        made.append(SharedPrefix(prefix.id, min(prefix.tokens, tokens)))
        begins = prefix.tokens
    return tuple(made)


def with_prefix_ids(turns: Sequence[Turn], rename: Callable[[str], str]) -> Sequence[Turn]:
    """The turns with other ids of their prefixes; the same object where no id changes."""
    ids = {prefix.id for turn in turns for prefix in turn.prefixes}
    if all(rename(id) == id for id in ids):
        return turns
    return tuple(
        replace(turn, prefixes=tuple(replace(p, id=rename(p.id)) for p in turn.prefixes))
        for turn in turns
    )


def prefixes_elsewhere(
    programs: Sequence[Program], root_of: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Of each program that names prefixes: how far other jobs follow each of them, in tokens.
    `root_of` gives each program's job."""
    reached: dict[str, dict[str, int]] = {}
    named: dict[str, set[str]] = {}
    for program in programs:
        for prefix in (prefix for turn in program.turns for prefix in turn.prefixes):
            named.setdefault(program.id, set()).add(prefix.id)
            jobs = reached.setdefault(prefix.id, {})
            job = root_of[program.id]
            jobs[job] = max(prefix.tokens, jobs.get(job, 0))
    return {
        program: {
            id: max((n for job, n in reached[id].items() if job != root_of[program]), default=0)
            for id in ids
        }
        for program, ids in named.items()
    }


def turns_of_copy(
    program: Program, elsewhere: Mapping[str, int] | None, suffix: str
) -> Sequence[Turn]:
    """A copy of a program is another job: where only its own job follows a prefix, the copy has one
    of its own, whose id gets the suffix."""
    if not elsewhere:
        return program.turns
    return tuple(
        replace(turn, prefixes=_of_copy(turn.prefixes, elsewhere, suffix)) for turn in program.turns
    )


def _of_copy(
    prefixes: Sequence[SharedPrefix], elsewhere: Mapping[str, int], suffix: str
) -> tuple[SharedPrefix, ...]:
    made = []
    begins = 0
    for prefix in prefixes:
        common = min(prefix.tokens, elsewhere[prefix.id])
        if common > begins:
            made.append(SharedPrefix(prefix.id, common))
        if prefix.tokens > max(common, begins):
            made.append(SharedPrefix(prefix.id + suffix, prefix.tokens))
        begins = prefix.tokens
    return tuple(made)


class _PrefixTree:
    """A tree of prompts. A line is a run of blocks that begins where a prompt first differed from
    all before it; prompts branch off it at any depth.

    Prompts come in branches. Within a branch each prompt repeats the one before it, which
    `kept_tokens` says already.
    """

    def __init__(self) -> None:
        self._lines: list[list[Hashable]] = []
        self._starts: list[int] = []
        """The depth of each line's first block."""
        self._next: dict[tuple[int, int, Hashable], int] = {}
        """Line, depth at which it is left, and the hash of the block there → the line that begins
        with this block."""
        self._paths: list[tuple[int, Path]] = []
        """Each prompt's branch and path."""
        self._branch = -1

    def begin_branch(self) -> None:
        self._branch += 1

    def add(self, hashes: Hashes) -> None:
        path: Path = []
        line, depth = -1, 0
        while depth < len(hashes):
            line = self._next.setdefault((line, depth, hashes[depth]), len(self._lines))
            if line == len(self._lines):
                self._lines.append([])
                self._starts.append(depth)
            blocks, start = self._lines[line], self._starts[line]
            depth += common_blocks(blocks[depth - start :], hashes[depth:])
            if depth == start + len(blocks):
                blocks += hashes[depth:]
                depth = len(hashes)
            path.append((line, depth))
        self._paths.append((self._branch, path))

    def shared_paths(self) -> list[Path]:
        """Of each prompt, as much of its path as any other branch has too."""
        longest: dict[int, list[tuple[int, int]]] = {}
        """Of each line: the two branches that follow it furthest, and how far."""
        for branch, path in self._paths:
            for line, depth in path:
                reached = dict(longest.get(line, ()))
                reached[branch] = max(depth, reached.get(branch, 0))
                longest[line] = sorted(reached.items(), key=lambda item: -item[1])[:2]
        made = []
        for branch, path in self._paths:
            shared: Path = []
            for line, depth in path:
                others = [d for other, d in longest[line] if other != branch]
                if others and others[0] > self._starts[line]:
                    shared.append((line, min(depth, others[0])))
            made.append(shared)
        return made
