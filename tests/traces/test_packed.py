"""Packed turns are the turns."""

from __future__ import annotations

import pickle

import pytest

from traces import Program, read_traces
from traces.packed import PackedTurns, packed


@pytest.fixture(scope="module")
def programs() -> tuple[Program, ...]:
    return read_traces(["swe-bench"]).programs


def test_packed_programs_equal_those_they_were_made_of_also_in_another_process(
    programs: tuple[Program, ...],
) -> None:
    assert packed(programs) == programs
    assert programs == packed(programs)
    assert pickle.loads(pickle.dumps(packed(programs))) == programs  # noqa: S301
    assert hash(packed(programs)[0]) == hash(programs[0])


def test_turns_can_be_counted_indexed_and_cut(programs: tuple[Program, ...]) -> None:
    turns = programs[0].turns
    made = PackedTurns(turns)
    assert (len(made), made[1], made[-1], made[1:]) == (len(turns), turns[1], turns[-1], turns[1:])


def test_another_turn_makes_a_difference(programs: tuple[Program, ...]) -> None:
    turns = programs[0].turns
    assert PackedTurns(turns) != turns[:-1]
    assert PackedTurns(turns) != PackedTurns(programs[1].turns)


def test_turns_that_programs_share_are_packed_once(programs: tuple[Program, ...]) -> None:
    first, second, other = packed([programs[0], programs[0], programs[1]])
    assert first.turns is second.turns
    assert first.turns is not other.turns


def test_a_turn_takes_less_than_a_tenth_of_its_memory(programs: tuple[Program, ...]) -> None:
    """A `Turn` and its numbers take some 200 bytes."""
    turns = sum(len(program.turns) for program in programs)
    assert len(pickle.dumps([program.turns for program in packed(programs)])) < 40 * turns
