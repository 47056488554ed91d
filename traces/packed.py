"""Keeps turns as compressed bytes, for workloads of many programs of which few run at a time.

In: programs. Out: equal programs that take at most a tenth of the memory. Each access to a turn
unpacks all turns of its program, at a microsecond or two each: for more than one, take
`tuple(turns)`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import overload

import orjson

from traces.program import Program, Provenance, SharedPrefix, Turn

FASTEST = 1
"""Compression level of zlib."""
NUMBERS_AND_NAMES = tuple(field.name for field in fields(Turn) if field.name != "prefixes")


class PackedTurns(Sequence[Turn]):
    __slots__ = ("_bytes", "_size")

    def __init__(self, turns: Sequence[Turn]) -> None:
        rows = [_row(turn) for turn in turns]
        self._bytes = zlib.compress(orjson.dumps(rows), FASTEST)
        self._size = len(rows)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Turn]:
        rows = orjson.loads(zlib.decompress(self._bytes))
        for prompt, output, kept, tools, command, gap_s, provenance, *path in rows:
            prefixes = tuple(SharedPrefix(id, tokens) for id, tokens in path)
            origin = Provenance(provenance)
            yield Turn(prompt, output, kept, tuple(tools), command, gap_s, origin, prefixes)

    @overload
    def __getitem__(self, place: int) -> Turn: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, place: int | slice) -> Turn | tuple[Turn, ...]:
        return tuple(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedTurns | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def _row(turn: Turn) -> list[object]:
    path = [(prefix.id, prefix.tokens) for prefix in turn.prefixes]
    return [*(getattr(turn, name) for name in NUMBERS_AND_NAMES), *path]


def packed(programs: Sequence[Program]) -> tuple[Program, ...]:
    """Programs that share their turns still do afterwards."""
    shared: dict[int, Sequence[Turn]] = {}
    made = []
    for program in programs:
        turns = shared.setdefault(id(program.turns), program.turns)
        if not isinstance(turns, PackedTurns):
            turns = shared[id(program.turns)] = PackedTurns(turns)
        made.append(replace(program, turns=turns))
    return tuple(made)
