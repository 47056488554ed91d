"""Reconciles ids, clocks and shared prefixes of programs from several files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from servers.basics.text import MAX_CHARACTERS, cut
from traces.block_hashes import with_prefix_ids
from traces.lenient import Repairs
from traces.program import Program, SharedPrefix
from traces.stored import StoredTurns

MIN_UNIX_S = 1e8
"""A recorded start from this value on is a Unix time; others are relative to the first start."""


def with_short_names(programs: list[Program], repairs: Repairs) -> list[Program]:
    """Cut ids, sources and names of tools of more than `MAX_CHARACTERS` as `identifier` does, so
    that different names remain different."""
    names = (name for program in programs for name in _names(program))
    if not (number := sum(len(name) > MAX_CHARACTERS for name in names)):
        return programs
    repairs.add(
        f"a name of more than {MAX_CHARACTERS} characters: cut, with a hash at its end", number
    )
    return [
        replace(renamed(program, cut, cut), source=cut(program.source), turns=tuple(
            replace(turn, tools=tuple(map(cut, turn.tools)))
            for turn in with_prefix_ids(program.turns, cut)
        ))
        for program in programs
    ]  # fmt: skip


def _names(program: Program) -> Iterator[str]:
    yield from (program.id, program.source)
    if program.prefix is not None:
        yield program.prefix.id
    if program.fork is not None:
        yield program.fork.program_id
    if not isinstance(program.turns, StoredTurns):  # whose names `read_stored` cuts
        for turn in program.turns:
            yield from turn.tools
            yield from (prefix.id for prefix in turn.prefixes)


class UniqueIds:
    """Renames the programs of a file whose ids earlier files use."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self._copies: Counter[str] = Counter()

    def rename(self, programs: list[Program], repairs: Repairs) -> list[Program]:
        names: dict[str, str] = {}
        for program in programs:
            name = program.id
            while name in self.used:
                self._copies[program.id] += 1
                name = f"{program.id}#{self._copies[program.id] + 1}"
            if name != program.id:
                repairs.add(
                    f"program id {program.id} is used by an earlier file: renamed to {name}"
                )
            names[program.id] = name
            self.used.add(name)
        if all(id == name for id, name in names.items()):
            return programs
        return [
            renamed(program, names.__getitem__, lambda id: renamed_prefix(id, names))
            for program in programs
        ]


def renamed(
    program: Program, new: Callable[[str], str], of_prefix: Callable[[str], str]
) -> Program:
    """Return the program with new ids for itself, its parent and its prefixes."""
    return replace(
        program,
        id=new(program.id),
        prefix=program.prefix and replace(program.prefix, id=of_prefix(program.prefix.id)),
        turns=with_prefix_ids(program.turns, of_prefix),
        fork=program.fork and replace(program.fork, program_id=new(program.fork.program_id)),
    )


def without_messages(programs: list[Program]) -> list[Program]:
    if not any(program.messages for program in programs):
        return programs
    return [replace(program, messages=(), prompt_messages=()) for program in programs]


def renamed_prefix(prefix_id: str, names: Mapping[str, str]) -> str:
    """Rename a prefix whose id begins with a program's id, since only its file shares it."""
    for colon in reversed([match.start() for match in re.finditer(":", prefix_id)]):
        if prefix_id[:colon] in names:
            return names[prefix_id[:colon]] + prefix_id[colon:]
    return prefix_id


def from_zero(programs: Sequence[Program]) -> list[Program]:
    """Convert recorded starts in Unix seconds to seconds after the first start."""
    starts = [s for p in programs if (s := p.recorded_start_s) is not None and s >= MIN_UNIX_S]
    first_s = min(starts, default=0.0)
    return [
        replace(p, recorded_start_s=round(p.recorded_start_s - first_s, 3))
        if p.recorded_start_s is not None and p.recorded_start_s >= MIN_UNIX_S
        else p
        for p in programs
    ]


def agree_on_prefixes(programs: Sequence[Program]) -> Iterator[Program]:
    """Use a prefix's shortest length, so that no program hits more than it shares."""
    shortest: dict[str, int] = {}
    for program in programs:
        if prefix := program.prefix:
            shortest[prefix.id] = min(prefix.tokens, shortest.get(prefix.id, prefix.tokens))
    for program in programs:
        prefix = program.prefix
        if prefix and prefix.tokens != shortest[prefix.id]:
            program = replace(program, prefix=SharedPrefix(prefix.id, shortest[prefix.id]))
        yield program
