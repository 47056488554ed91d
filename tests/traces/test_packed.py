"""Packed turns are equivalent to the turns."""

from __future__ import annotations

import pickle

import pytest

from traces import Program, read_traces
from traces.stored import PackedTurns, packed


@pytest.fixture(scope="module")
def programs() -> tuple[Program, ...]:
    return read_traces(["swe-bench"]).programs


def test_packed_programs_equal_the_originals_even_after_pickling(
    programs: tuple[Program, ...],
) -> None:
    assert packed(programs) == programs
    assert programs == packed(programs)
    assert pickle.loads(pickle.dumps(packed(programs))) == programs  # noqa: S301
    assert hash(packed(programs)[0]) == hash(programs[0])


def test_packed_turns_can_be_counted_indexed_and_sliced(programs: tuple[Program, ...]) -> None:
    turns = programs[0].turns
    packed_turns = PackedTurns(turns)
    assert (len(packed_turns), packed_turns[1], packed_turns[-1], packed_turns[1:]) == (
        len(turns),
        turns[1],
        turns[-1],
        turns[1:],
    )


def test_packed_turns_with_different_turns_are_not_equal(programs: tuple[Program, ...]) -> None:
    turns = programs[0].turns
    assert PackedTurns(turns) != turns[:-1]
    assert PackedTurns(turns) != PackedTurns(programs[1].turns)


def test_turns_shared_by_programs_are_packed_once(programs: tuple[Program, ...]) -> None:
    first, second, other = packed([programs[0], programs[0], programs[1]])
    assert first.turns is second.turns
    assert first.turns is not other.turns


def test_a_packed_turn_takes_less_than_40_bytes(programs: tuple[Program, ...]) -> None:
    """A `Turn` and its numbers take about 200 bytes."""
    turns = sum(len(program.turns) for program in programs)
    assert len(pickle.dumps([program.turns for program in packed(programs)])) < 40 * turns
