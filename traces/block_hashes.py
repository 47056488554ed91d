"""Computes the parts that prompts share, from the hashes of their blocks of tokens.

In: for each prompt, the hashes of its full blocks, in order. Prompts with equal hashes up to a
block have equal tokens up to the end of that block. Out: `Turn.kept_tokens` and `Turn.prefixes`.
Lengths are in tokens, depths in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from traces.program import Program, SharedPrefix, Turn
from traces.stored import StoredTurns

Hashes = Sequence[Hashable]
Path = list[tuple[int, int]]
"""Edges of the prefix tree that a prompt follows, with the depths at which it leaves them."""


def common_blocks(a: Sequence[object], b: Sequence[object]) -> int:
    """Return the number of equal leading hashes."""
    for depth, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return depth
    return min(len(a), len(b))


def kept_tokens(
    before_tokens: int, output_tokens: int, prompt_tokens: int, common: int | None, block: int
) -> int:
    """Return the number of tokens that a prompt repeats of the previous prompt and its output.

    `common` is the number of leading blocks that both prompts share; if it is None (not recorded),
    the prompt is assumed to repeat the whole previous one. A prompt that repeats all blocks of the
    previous one also repeats its output if it is long enough. If it is shorter, the agent rewrote
    the output (it dropped the model's reasoning).
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
    """Return the programs, with `kept_tokens` and `prefixes` set according to the hashes.

    `hashes` has a list of block hashes for each turn, by program id. Hashes beyond a prompt's full
    blocks are ignored.
    """
    prompts = {
        program.id: [
            prompt[: turn.prompt_tokens // block_tokens]
            for prompt, turn in zip(hashes[program.id], program.turns, strict=True)
        ]
        for program in programs
    }
    tree = _PrefixTree()
    for program in programs:
        tree.begin_sequence()
        for before, prompt in zip([(), *prompts[program.id]], prompts[program.id], strict=False):
            if common_blocks(before, prompt) < len(before):
                tree.begin_sequence()
            tree.add(prompt)
    paths = iter(tree.shared_paths())
    scope = programs[0].id if programs else ""
    result = []
    for program in programs:
        kept_of_turns = _kept_of_turns(program.turns, prompts[program.id], block_tokens)
        turns = [
            replace(turn, kept_tokens=kept, prefixes=_prefixes(next(paths), scope, block_tokens))
            for turn, kept in zip(program.turns, kept_of_turns, strict=True)
        ]
        result.append(replace(program, turns=extend_prefixes(turns)))
    return result


def _kept_of_turns(turns: Sequence[Turn], hashes: Sequence[Hashes], block: int) -> list[int]:
    kept = [0] * len(turns)
    for i in range(1, len(turns)):
        before, common = turns[i - 1], common_blocks(hashes[i - 1], hashes[i])
        kept[i] = kept_tokens(
            before.prompt_tokens, before.output_tokens, turns[i].prompt_tokens, common, block
        )
    return kept


def _prefixes(path: Path, scope: str, block: int) -> tuple[SharedPrefix, ...]:
    return tuple(SharedPrefix(f"{scope}:{edge}", depth * block) for edge, depth in path)


def extend_prefixes(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Extend the prefixes of each prompt by the prefixes of the next prompt that it contains.

    Hashes cover full blocks only. The tokens after a prompt's last full block are part of a prefix
    if the next prompt repeats them and they are part of its prefix.
    """
    extended = list(turns)
    for i in range(len(extended) - 2, -1, -1):
        turn, following = extended[i], extended[i + 1]
        end = turn.prefixes[-1].tokens if turn.prefixes else 0
        longer = truncated(following.prefixes, min(following.kept_tokens, turn.prompt_tokens))
        if longer and longer[-1].tokens > end and truncated(longer, end) == turn.prefixes:
            extended[i] = replace(turn, prefixes=longer)
    return tuple(extended)


def truncated(prefixes: Sequence[SharedPrefix], tokens: int) -> tuple[SharedPrefix, ...]:
    """Return the prefixes of the first `tokens` tokens."""
    result = []
    begin = 0
    for prefix in prefixes:
        if begin >= tokens:
            break
        result.append(SharedPrefix(prefix.id, min(prefix.tokens, tokens)))
        begin = prefix.tokens
    return tuple(result)


def with_prefix_ids(turns: Sequence[Turn], rename: Callable[[str], str]) -> Sequence[Turn]:
    """Return the turns with renamed prefixes; the same object if no id changes."""
    if isinstance(turns, StoredTurns):
        return turns  # which have no prefixes
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
    """Return, for each prefix of each program, the number of its tokens that other jobs use.
    `root_of` maps programs to jobs."""
    used: dict[str, dict[str, int]] = {}
    """By prefix id and job, in tokens."""
    ids_of: dict[str, set[str]] = {}
    for program in programs:
        for prefix in (prefix for turn in program.turns for prefix in turn.prefixes):
            ids_of.setdefault(program.id, set()).add(prefix.id)
            jobs = used.setdefault(prefix.id, {})
            job = root_of[program.id]
            jobs[job] = max(prefix.tokens, jobs.get(job, 0))
    return {
        program: {
            id: max((n for job, n in used[id].items() if job != root_of[program]), default=0)
            for id in ids
        }
        for program, ids in ids_of.items()
    }


def turns_of_copy(
    program: Program, elsewhere: Mapping[str, int] | None, suffix: str
) -> Sequence[Turn]:
    """Return the turns of a copy of a program, which is a new job. The parts of prefixes that only
    the program's job uses get new ids in the copy, with the suffix."""
    if not elsewhere:
        return program.turns
    return tuple(
        replace(turn, prefixes=_of_copy(turn.prefixes, elsewhere, suffix)) for turn in program.turns
    )


def _of_copy(
    prefixes: Sequence[SharedPrefix], elsewhere: Mapping[str, int], suffix: str
) -> tuple[SharedPrefix, ...]:
    result = []
    begin = 0
    for prefix in prefixes:
        common = min(prefix.tokens, elsewhere[prefix.id])
        if common > begin:
            result.append(SharedPrefix(prefix.id, common))
        if prefix.tokens > max(common, begin):
            result.append(SharedPrefix(prefix.id + suffix, prefix.tokens))
        begin = prefix.tokens
    return tuple(result)


class _PrefixTree:
    """A tree of prompts. An edge is a run of blocks that begins where a prompt first differs from
    all earlier ones; other edges may branch off at any depth.

    Prompts are added in sequences. Within a sequence, prompts repeat the previous one, as
    `kept_tokens` describes, so only prompts of different sequences share prefixes.
    """

    def __init__(self) -> None:
        self._edges: list[list[Hashable]] = []
        self._starts: list[int] = []
        """Depth of each edge's first block."""
        self._next: dict[tuple[int, int, Hashable], int] = {}
        """Edges that branch off, by (edge, depth of the branch, hash of the first block there)."""
        self._paths: list[tuple[int, Path]] = []
        """Each prompt's sequence and path."""
        self._sequence = -1

    def begin_sequence(self) -> None:
        self._sequence += 1

    def add(self, hashes: Hashes) -> None:
        path: Path = []
        edge, depth = -1, 0
        while depth < len(hashes):
            edge = self._next.setdefault((edge, depth, hashes[depth]), len(self._edges))
            if edge == len(self._edges):
                self._edges.append([])
                self._starts.append(depth)
            blocks, start = self._edges[edge], self._starts[edge]
            depth += common_blocks(blocks[depth - start :], hashes[depth:])
            if depth == start + len(blocks):
                blocks += hashes[depth:]
                depth = len(hashes)
            path.append((edge, depth))
        self._paths.append((self._sequence, path))

    def shared_paths(self) -> list[Path]:
        """Return, for each prompt, the part of its path that prompts of other sequences follow."""
        deepest: dict[int, list[tuple[int, int]]] = {}
        """For each edge, the two sequences that follow it furthest, with the depths."""
        for sequence, path in self._paths:
            for edge, depth in path:
                depths = dict(deepest.get(edge, ()))
                depths[sequence] = max(depth, depths.get(sequence, 0))
                deepest[edge] = sorted(depths.items(), key=lambda item: -item[1])[:2]
        result = []
        for sequence, path in self._paths:
            shared: Path = []
            for edge, depth in path:
                others = [d for other, d in deepest[edge] if other != sequence]
                if others and others[0] > self._starts[edge]:
                    shared.append((edge, min(depth, others[0])))
            result.append(shared)
        return result
